// Package config follows and reads configuration trees in ZooKeeper. Package fleet
// publishes them.
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
//   - plain: there is no ready rule. For trees that other tools write. With
//     leaves only znodes without children are keys.
//
// # Znodes
//
// A tree has these znodes:
//
//	<root>/ready                      flat: empty; versioned: JSON that names the version in use
//	<root>/versions/<S>               versioned: header and bucket digests
//	<root>/objects/<2 hex>/<sha256>   versioned: buckets and values
//	<root>/freeze                     no flip of ready while it exists
//	<root>/rollouts/...               see package fleet
//	<root>-lock/...                   the publishers' lock
//
// A program follows a config with [Follow], which continues across the sessions of a
// [session.Manager]. A program that manages its own sessions uses a [Watcher].
//
// # Guarantees
//
// A [Watcher] passes on only trees that are consistent at one moment. For a flat
// tree, ready must have existed with the same czxid from before the first read
// until after the last. For a versioned tree, every digest must match. Until the Watcher reads such a tree, the last one stays in use and
// [Watcher.Status] says what the Watcher waits for. It never passes on an unchanged
// tree twice.
//
// The ready rule gives no consistency when a writer ignores it.
package config
