// Package hook runs the hooks of a host and of the elections that it leads.
//
// Steps of one run:
//  1. a trigger is due: the accepted content of a source changed and its files
//     are in place, a slot of the schedule is due, or a term began;
//  2. the ledger records the run as started;
//  3. the command runs, for leader-only hooks under a guard and the lease;
//  4. the ledger records the run as done or failed.
//
// The ledger of a leader-only hook is the znode <election path>-ledger/<hook>,
// and each write checks the candidate's znode in the same transaction. The
// ledger of any other hook is a file in the state directory.
//
// Guaranteed: the latest accepted content runs its hook once, whoever leads. A
// run that started and whose end is unknown is reported, and is repeated only
// if the hook is idempotent. A leader-only command is gone before another host
// can lead. Nothing runs without its ledger.
//
// Not guaranteed: a hook for each content in between. Contents that replace each
// other before the hook runs count as one change.
package hook
