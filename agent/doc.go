// Package agent runs on every host: it registers the host's services, renders files
// from ZooKeeper, reloads the programs that read the files, and runs hooks.
//
// Data flows one way. Units (one per service, config, group, election) run inside a
// session and send [view.Update] values to one loop, which owns the [view.View]; the
// loop hands views to applies, at most one per bundle, and gets results back as values.
// Work that must not outlive a session or a term runs under its context.
//
// Guarantees: the agent renders nothing before every source has reported. Files change
// together or not at all. The agent does not forget a pending reload. Work that only a
// leader may do stops before another host may lead.
//
// Not here: the layout of znodes, the execution of templates, and the settings file.
package agent
