// Package election elects one leader among candidates, each with a term that
// has a number and an end.
//
//	<path>/_c_<uuid>-latch-<sequence>    ephemeral sequential, data = candidate id
//
// Steps (ZooKeeper Recipes, "Leader Election"; Hunt and others, Simple Locks
// without Herd Effect; the layout is Apache Curator's LeaderLatch): create;
// list; the first in order leads; everybody else watches the nearest
// predecessor, and its own znode. A candidate believes in its turn only after it
// has read its own znode, found it owned by its session, and nothing has happened
// to it since.
//
// # Guarantees
//
//   - A term's number is the czxid of the leader's znode: it grows from term to
//     term, and every write can be fenced with [Term.Guard].
//   - A term's context ends, with a cause, before the ensemble can give the
//     leadership to another: at two thirds of the session timeout without an
//     answer (session.ErrSuspended), when the znode is gone (recipe.ErrLost), on
//     [Candidate.Resign] (ErrResigned), with the session, or with Run's context.
//   - A departure wakes one candidate, which leads after one request, a list,
//     whatever the number of candidates: that its znode is its own it has read,
//     with a watch, while it waited.
//   - A suspension that ends within the session keeps the place: the term goes
//     on under its number. So does a session that another process has resumed.
//
// # Not here
//
// Leading is not exclusive against a process that is paused between its look at
// the clock and its act; the fence is for that. Candidates of equal rank lead in
// the order in which they came, and nobody is deposed for a better one.
package election
