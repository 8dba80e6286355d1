// Package settings reads the agent's own settings: HCL 2 files, resolved to a
// plain [agent.Config]. HCL ends here: nothing outside this package and the
// commands that print diagnostics knows the language.
//
// Each block has a function that reads it. It names an argument, what it is, its
// default, its limits and what it means where it uses the value, and nowhere else: the
// checks, the errors about other names, and the reference in
// docs/reference/settings.md come from these calls.
//
// Guarantees: every problem is found in one run, sorted by position, each with
// file, line and column; a configuration with errors is never returned; no
// file is changed and no server is asked.
//
// Not here: settings that other hosts share, which live in ZooKeeper (package
// config).
package settings
