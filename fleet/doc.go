// Package fleet publishes config trees, at once or by a rollout, and keeps the record
// of each host.
//
// [Publish], [Prepare], [Rollback] and [Convert] write a tree, [Freeze] forbids changes,
// and [GC] deletes old versions. [Edit] changes some keys of the tree in use. A
// publisher never leaves a mix of two trees in use. It changes everything in one
// transaction, or removes ready until the last key is written, or writes a version
// that stays invisible until ready names it.
//
// In a rollout, every subscribed host renders and checks the proposed version and votes.
// When all vote commit, a few hosts at a time activate it. The rollout halts at the
// first failure. When all hosts have the version, it becomes the version of the tree.
//
// # Znodes
//
// Below the root of the tree:
//
//	rollouts                        (P)  past freezes
//	rollouts/current                (P)  name of the one open rollout
//	rollouts/shards/<h>             (P)  the rollout that the hosts of the shard are called to
//	rollouts/shards/<h>/<agent>     (E)  [Subscription]: what the agent uses
//	rollouts/r-<S>                  (P)  [Proposal], never changed
//	rollouts/r-<S>/gate             (P)  [Gate], set by version
//	rollouts/r-<S>/progress         (P)  [Progress], once a second
//	rollouts/r-<S>/hosts/<h>        (P)  who was called
//	rollouts/r-<S>/hosts/<h>/<agent> (P) [HostRecord]
//	rollouts/r-<S>/coordinator           election of the coordinator, latch layout
//
// h is the shard of the agent's id, as [Shard] computes it.
//
// # Guarantees
//
//   - A host starts only by a transaction that checks the gate: it must be unchanged
//     since the coordinator granted the turn, open and not paused.
//   - No host activates a version that one host has refused. Every called host has
//     checked an activated version. Refusal and decision both set the gate at its
//     version, so only one of them can win.
//   - At most K hosts are between their grant and the end of their turn, even if
//     their sessions end. Only one coordinator grants, and its candidate znode
//     fences it.
//   - While no rollout is open, every host uses the version that ready names. The
//     exception is a host that failed with that version when the strategy tolerated
//     the failure.
//   - Every rollout ends as done, aborted, superseded or replaced, or it stays
//     halted, or refused after it replaced a halted one. The command line only
//     proposes and watches, so it may die at any time.
//
// # Limitations
//
// A host without a connection keeps using its version; a rollout cannot revoke it.
//
// Two-phase commit is the recipe of the ZooKeeper documentation ("Two-phased
// Commit"); the decision is fenced by the coordinator's candidate znode.
package fleet
