// Package election elects one leader among candidates, each with a term that
// has a number and an end.
//
//	<path>/_c_<uuid>-latch-<sequence>    ephemeral sequential, data = candidate id
//
// Steps (ZooKeeper Recipes, "Leader Election"; Hunt and others, Simple Locks
// without Herd Effect; the layout is Apache Curator's LeaderLatch): create; list. The
// first in order leads. Every other candidate watches its nearest predecessor and its
// own znode. A candidate leads only after it has read its own znode, has found that its
// session owns it, and has seen no event for it since.
//
// # Guarantees
//
//   - A term's number is the czxid of the leader's znode: it grows from term to
//     term, and every write can be fenced with [Term.Guard].
//   - A term's context ends, with a cause, before the ensemble can give the
//     leadership to another: at two thirds of the session timeout without an
//     answer (session.ErrSuspended), when the znode is gone (recipe.ErrLost), on
//     [Candidate.Resign] (ErrResigned), with the session, or with Run's context.
//   - A departure wakes one candidate. That candidate leads after one request, a
//     list, whatever the number of candidates: it has read its own znode, with a
//     watch, while it waited.
//   - A suspension that ends within the session keeps the place: the term continues
//     under its number. So does the term of a session that another process resumes.
//
// # Limitations
//
// A leader that pauses between its check of the clock and its act may act together with
// the next one; the fence is for that. Candidates lead in the order of arrival. A leader
// never has to leave for a better candidate.
package election
