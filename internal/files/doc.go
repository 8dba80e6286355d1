// Package files replaces files so that a reader sees the old one or the new
// one, and a crash leaves one of the two.
//
// [Begin] starts a change of several files. [Tx.StageAll] writes new files
// beside their destinations, [Tx.Swap] renames all of them into place, and
// [Tx.Restore] puts the old ones back. From a journal in the state directory
// [Recover] learns what a killed process left. [Written] is the record of a file in
// place; [Written.Drift] says how the file differs from it.
//
// Guarantees: all files of a change are new, or all are old, also after a kill
// or a power loss between any two system calls; an error leaves the old ones, or
// is [ErrNotRestored], which keeps the journal and the old bytes until [Recover]
// succeeds; access lists and SELinux labels are carried over, or the change is
// refused; no link is followed in a directory that another user can write.
//
// Package internal/zktest/filestest has a disk that fails, is cut off between two calls and
// loses its power.
//
// Not here: what stands in the files (package template), when they are
// written, checks and reloads (package agent).
package files
