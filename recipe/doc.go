// Package recipe has ZooKeeper's recipes as a Go library: locks, read-write and
// revocable locks, multi-locks, semaphores, barriers, queues, two-phase commit,
// counters, persistent nodes and group membership. Elections are in
// package election, on the same order of contenders ([Participants]).
//
// # Usage
//
// Each recipe is made from a session and a path, does no I/O until it is used,
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
// What is held is a context: it ends, with a cause, when the hold does, be it
// given back ([ErrReleased]), gone ([ErrLost]), or unsure because nothing was
// heard from a server for two thirds of the session timeout
// (session.ErrSuspended). Work runs under that context, and takes the fence
// with it to whatever must refuse a holder of the past.
//
// # Guarantees
//
//   - A lost reply neither hides nor doubles anything: what a recipe creates can
//     be found again, and changes of shared znodes carry a marker.
//   - A cancelled context leaves nothing behind: what was created is deleted,
//     in the background if it must be.
//   - One departure wakes one waiter. Exceptions are told by the recipe.
//   - Order is that of the sequences, also over their wrap at 2^31.
//   - A recipe belongs to one session. When that has ended, its methods return
//     the session's cause, and the recipe is made again from the next session.
//
// # Not here
//
// Mutual exclusion with a process that is paused between its look at the context
// and its act: no lock service can have it. Fences do.
//
// Layouts are those of Apache Curator or kazoo where a path may be shared, and
// are told at the top of each file with the steps, their source and their limits.
package recipe
