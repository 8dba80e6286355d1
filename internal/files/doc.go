// Package files replaces files so that a reader sees the old one or the new
// one, and a crash leaves one of the two.
//
// [Begin] starts a change of several files. [Tx.Stage] writes a new file
// beside its destination, [Tx.Swap] renames all of them into place, and
// [Tx.Restore] puts the old ones back. A journal in the state directory tells
// [Recover] what a killed process left. [Written] is the record of a file in
// place; [Written.Drift] says how the file differs from it.
//
// Guarantees: all files of a change are new, or all are old; an error leaves
// the old ones; links to files outside of the directory are never followed
// after the directory was opened.
//
// Not here: what stands in the files (package template), when they are
// written, checks and reloads (package agent).
package files
