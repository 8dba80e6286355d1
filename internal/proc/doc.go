// Package proc runs one command well: in a process group of its own, in a
// clean environment, with its output kept to a limit and nothing of it left
// behind; and it runs commands that need a lease under a guard.
//
// Guarantees: when [Run] or [Guard.Run] has returned, the command and every
// process of its group are gone, and so is every goroutine and file of the
// call. A guarded command is gone too when this process dies or stops, at the
// latest when its lease and a grace period have passed.
//
// Not here: deciding what to run, with which variables, or how often.
package proc
