// Package template renders text from a [view.View].
//
// Rendering: [Parse] reads a text/template with the function set that
// [Functions] lists; [Template.Uses] finds in the parse tree which config
// keys, groups and elections it depends on, [Template.Stale] whether a new
// view can change its text, and [Template.Render] executes it within limits of
// time, size and depth.
//
// Guarantees: a template cannot reach ZooKeeper, the network, other programs
// or, unless allowed, the environment and the file system; the same view
// gives the same bytes (but for timestamp and ago); an error names template,
// line, column and the path of the value, and never the value.
//
// Not here: files (internal/files), when to render, checks and reloads (package agent).
package template
