// Package agent runs on every host: it registers the host's services, renders files
// from ZooKeeper, reloads the programs that read the files, and runs hooks.
//
// Data flows one way. Units (one per service, config, group, election) run
// inside a session and send [view.Update] values to one loop, which owns the
// [view.View]; the loop hands views to applies, at most one per bundle, and
// gets results back as values. What must not outlive a session or a term runs
// under its context.
//
// Guarantees: nothing is rendered from a half-known view; files change
// together or not at all; a reload that is pending is not forgotten; work that
// only a leader may do stops before another may lead.
//
// Not here: how things are laid out in ZooKeeper, how templates are executed,
// and the settings file.
package agent
