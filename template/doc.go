// Package template renders files from a [view.View] and puts them in place.
//
// Rendering: [Parse] reads a text/template with the function set that
// [Functions] lists; [Template.Uses] tells from the parse tree which config
// keys, groups and elections it depends on, [Template.Stale] whether a new
// view can change its text, and [Template.Render] executes it within limits of
// time, size and depth.
//
// Files: [Stage] writes a file beside its destination, [Staged.Swap] renames
// it into place, [Staged.Restore] puts the old one back. [Begin] does the same
// for several files that change together or not at all, with a journal, and
// [Recover] finishes what a killed process left.
//
// Guarantees: a template cannot reach ZooKeeper, the network, other programs
// or, unless allowed, the environment and the file system; the same view
// gives the same bytes (but for timestamp and ago); an error names template,
// line, column and the path of the value, and never the value.
//
// Not here: when to render, checks and reloads (package agent).
package template
