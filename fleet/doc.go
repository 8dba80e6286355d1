// Package fleet changes all hosts that follow one versioned config tree
// safely: a proposed version is rendered and checked by every subscribed host
// (a vote), becomes the version of the tree only when all say commit, and is
// then activated by a few hosts at a time, stopping at the first failure.
//
// # Znodes, below the root of the tree
//
//	rollouts/current                (P)  name of the one open rollout
//	rollouts/r-<S>                  (P)  [Proposal]
//	rollouts/r-<S>/votes/<agent>    (P)  [Vote], created once
//	rollouts/r-<S>/decision         (P)  [Decision], created once
//	rollouts/r-<S>/control          (P)  [Control], set by version
//	rollouts/r-<S>/permits          (P)  semaphore of K (Curator's SemaphoreV2 layout)
//	rollouts/r-<S>/hosts            (P)  [Activity]: who is between swap and post-check, how many may start
//	rollouts/r-<S>/hosts/<agent>    (P)  [HostRecord]
//	rollouts/r-<S>/halt             (P)  [Halt]
//	rollouts/r-<S>/done             (P)  [Done]
//	rollouts/coordinator                 election of the coordinator, latch layout
//
// # Guarantees
//
//   - No host uses a version without a commit decision and a permit: the
//     record that starts a host is created in one multi with checks of the
//     permit, of halt, and of the number of hosts that are active.
//   - A decision is created once and never changes; it is made in the same
//     multi as the flip of ready, which a freeze forbids.
//   - At most K hosts are between started and done, whether their sessions
//     live or not.
//   - Every rollout ends done, aborted or halted; the command line only
//     proposes and watches, and may die.
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
