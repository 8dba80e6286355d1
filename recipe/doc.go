// Package recipe has ZooKeeper's recipes as a Go library: locks, read-write and
// revocable locks, multi-locks, semaphores, barriers, queues, two-phase commit,
// counters, values, leases, persistent nodes, group membership, shards divided among
// members, and copies of subtrees. Elections are in package election, on the same order of contenders ([Participants]).
//
// # Usage
//
// Each recipe is created from a session and a path, does no I/O until it is used,
// and takes a context wherever it waits:
//
//	lock := recipe.NewLock(s, recipe.LockConfig{Path: "/locks/deploy"})
//	hold, err := lock.Acquire(ctx)
//	if err != nil {
//		return err
//	}
//	defer hold.Release(context.WithoutCancel(ctx))
//	return deploy(hold.Context(), hold.Fence())
//
// A hold has a context. The context ends, with a cause, when the hold ends: the
// caller released it ([ErrReleased]), its znode is gone ([ErrLost]), or no server
// answered for two thirds of the session timeout (session.ErrSuspended). Run the
// work under that context. Pass the fence to every resource that must refuse a
// previous holder.
//
// # Guarantees
//
//   - A lost reply hides nothing and applies nothing twice: a recipe can find
//     each znode that it created, and its changes of shared znodes carry a marker.
//   - A cancelled context leaves nothing behind: the recipe deletes the znodes that it
//     created, in the background if it must.
//   - One departure wakes one waiter. A recipe that wakes more says so.
//   - The sequence numbers give the order. A recipe that gets the last one,
//     which a server gives out again and again, returns [ErrSequence].
//   - A recipe belongs to one session. After the session has ended, the methods
//     return its cause. Make the recipe again from the next session.
//
// # Limitations
//
// A process may check its context, pause, and act after another holder has begun.
// No lock service can prevent that. Use the fence.
//
// Paths that other clients may share have the layout of Apache Curator or kazoo.
// docs/recipes.md lists the layouts, and the guarantees and limits of each recipe.
// A comment before each recipe describes the steps and their source.
package recipe
