// Package apply brings one bundle of files up to date: render, stage, check,
// swap, reload; and restore when the reload fails.
//
// [Parse] reads the templates of a bundle. An [Engine] applies it:
//
//   - [Engine.Run] does what the agent's loop asks for: it changes files and
//     reloads programs.
//   - [Engine.Try] renders, stages and checks for a vote, and leaves no trace.
//   - [Engine.Preview] renders for the page, and touches nothing.
//   - [Engine.Once] does what "zkagent render" does: it changes files and
//     reloads nothing.
//
// Guaranteed: nothing in use changes before every check that can run without
// it has passed. The files of a bundle are of one version. A reload is noted
// as pending before the swap, and until it has succeeded.
//
// Not here: when a bundle is applied (the agent's loop), how files are
// replaced (package files), and what ZooKeeper holds: [Fleet] is the way to
// it.
package apply
