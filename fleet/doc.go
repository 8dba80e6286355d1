// Package fleet changes all hosts that follow one versioned config tree
// safely: a proposed version is rendered and checked by every subscribed host
// (a vote), is activated by a few hosts at a time when all say commit, stops at the
// first failure, and becomes the version of the tree when all have it.
//
// # Znodes, below the root of the tree
//
//	rollouts/current                (P)  name of the one open rollout
//	rollouts/shards/<h>             (P)  [Call]: the rollout that the hosts of the shard are called to
//	rollouts/shards/<h>/<agent>     (E)  a subscription, see package config
//	rollouts/r-<S>                  (P)  [Proposal], never changed
//	rollouts/r-<S>/gate             (P)  [Gate], set by version
//	rollouts/r-<S>/progress         (P)  [Progress], once a second
//	rollouts/r-<S>/hosts/<h>        (P)  [Snapshot]: who was called
//	rollouts/r-<S>/hosts/<h>/<agent> (P) [HostRecord]
//	rollouts/r-<S>/coordinator           election of the coordinator, latch layout
//
// h is the shard of the agent's id, as [config.Shard] computes it.
//
// # Guarantees
//
//   - A host starts only by a transaction that checks that the gate is as it was
//     when the coordinator granted its turn: open and not paused.
//   - A version that one host refuses is never activated, and one that is
//     activated was checked by every host that was called: refusal and decision
//     set one znode at its version.
//   - At most K hosts are between their grant and their end, whether their
//     sessions live or not: one coordinator grants, fenced by its candidate.
//   - While no rollout is open every host uses what ready names, unless it has
//     failed with it and that was tolerated.
//   - Every rollout ends done, aborted, superseded or replaced, or is halted, or
//     was refused in the place of a halted one; the command line only proposes and
//     watches, and may die.
//
// # Not here
//
// Rendering and checking, which the [Host] does; the contents of versions,
// which package config keeps. A host that is cut off goes on with what it has
// in use: nothing can be taken from it.
//
// Two-phase commit is the recipe of the ZooKeeper documentation ("Two-phased
// Commit"); the decision is fenced by the coordinator's candidate znode.
package fleet
