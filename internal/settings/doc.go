// Package settings reads the agent's own settings: HCL 2 files, resolved to a
// plain [agent.Config]. HCL ends here: nothing outside this package and the
// commands that print diagnostics knows the language.
//
// Loading has two steps for each block. decode reads it into an unexported
// raw struct whose attributes are expressions and whose tags say what each
// attribute is, its default, its limits, and what it means; the resolve
// function of the block then evaluates them under those rules. The tags are
// the only place where a rule is written: the checks and the reference in
// docs/reference/settings.md both come from them.
//
// Guarantees: every problem is found in one run, sorted by position, each with
// file, line and column; a configuration with errors is never returned; no
// file is changed and no server is asked.
//
// Not here: settings that other hosts share, which live in ZooKeeper (package
// config).
package settings
