// Package config follows and publishes configuration trees in ZooKeeper.
//
// A config is a tree of keys under a root znode; a key is a path relative to
// the root. There are three layouts:
//
//   - flat: the keys are znodes, and a znode named ready beside them says that
//     the tree is complete (ZooKeeper paper, 2.3: a new leader deletes ready,
//     changes the configuration, and creates ready again).
//
//   - versioned: contents are stored once, by digest; each version is an
//     immutable list of them, and ready names the version in use.
//
//   - plain: there is no ready rule. For trees that other tools write.
//
//     <root>/ready                      flat: empty; versioned: JSON, see [Ready]
//     <root>/versions/<S>               versioned: header and bucket digests
//     <root>/objects/<2 hex>/<sha256>   versioned: buckets and values
//     <root>/freeze                     no flip of ready while it exists
//     <root>/rollouts/...               votes and rollouts
//     <root>/rollouts/shards/<h>/<id>   ephemeral: what an agent uses, see [Subscriber]
//     <root>-lock/...                   the publishers' lock
//
// A program follows a config by [Follow] and writes one by a [Publisher]; both go
// on over the sessions of a [session.Manager]. [Watcher] and [Publish] are what
// they are made of, for programs that look after their sessions themselves.
//
// # Guarantees
//
// A [Watcher] passes on a tree only as of one moment: a flat one only if ready
// stood with the same czxid from before the first read until after the last,
// on one connection; a versioned one only if every digest is right. While there
// is no such moment the last tree stays in use, and [Watcher.Status] says what
// is waited for. An unchanged tree is never passed on twice.
//
// A publisher never leaves a tree in use that is a mix of two: it changes all
// in one transaction, or keeps ready away until the last key is written, or
// writes a version that nobody sees before ready names it.
//
// # Not here
//
// Votes and rollouts are built on [Prepare] elsewhere. The ready
// rule cannot make a tree of a writer consistent that does not keep it.
package config
