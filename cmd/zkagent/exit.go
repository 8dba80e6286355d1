package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/dev"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1  // failed or refused; with --exit-code: there is a difference
	exitUsage       = 2  // wrong usage
	exitUnavailable = 69 // ZooKeeper or the agent's socket cannot be reached
	exitSoftware    = 70 // failed, where 1 means a difference
	exitTemporary   = 75 // not obtained in time, or another version is in use
	exitLost        = 76 // the lock, leadership or item was lost while the command ran
	exitPermission  = 77 // ACL, socket mode, file mode
	exitConfig      = 78 // the settings are invalid
	exitSignal      = 128
)

type cliError struct {
	code  int
	err   error
	hints []string
}

func (e *cliError) Error() string { return e.err.Error() }
func (e *cliError) Unwrap() error { return e.err }

// fail gives an error an exit code and hints.
func fail(code int, err error, hints ...string) error {
	if err == nil {
		return nil
	}
	return &cliError{code: code, err: err, hints: hints}
}

func failf(code int, format string, args ...any) error {
	return &cliError{code: code, err: fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return failf(exitUsage, format, args...) }

// codeError ends the program with a code, after the message was printed.
type codeError int

func (c codeError) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return "interrupted by " + e.signal.String() }

func (g *globals) notify(e *cliError) int {
	if diags, ok := errors.AsType[hcl.Diagnostics](e.err); !ok || !g.shown {
		g.Errorf("%s", strings.TrimSpace(e.err.Error()))
	} else {
		g.Errorf("settings are invalid: %s", term.Count(len(diags.Errs()), "error"))
	}
	for i, h := range e.hints {
		e.hints[i] = g.hint(h)
	}
	if g.IsJSON() { // machines read standard output
		name := "failed"
		if i := slices.IndexFunc(exitCodes, func(c exitCode) bool { return c.code == e.code }); i >= 0 {
			name = exitCodes[i].name
		}
		_ = g.Line(map[string]any{"error": map[string]any{"code": name, "message": e.err.Error(), "hint": strings.Join(e.hints, "; ")}})
	}
	return e.code
}

var quotedCommand = regexp.MustCompile(`"(ssh [^"]+ )?zkagent [^"]+"`)

func (g *globals) hint(text string) string {
	g.Say("hint: %s", text)
	return g.here(text)
}

// here adds to the commands in a text the flags that name the ensemble and the settings.
func (g *globals) here(text string) string {
	words := append([]string{""}, g.whereWords()...)
	if g.addr != "" {
		words = append(words, "--addr", term.ShellWord(g.addr))
	}
	where := strings.Join(words, " ")
	return quotedCommand.ReplaceAllStringFunc(text, func(command string) string {
		if strings.HasSuffix(command, ` --help"`) {
			return command
		}
		command, own, dashes := strings.Cut(strings.Trim(command, `"`), " -- ")
		if dashes {
			own = " -- " + own
		}
		return `"` + command + where + own + `"`
	})
}

var classes = []struct {
	is   error
	code int
	hint string
}{
	{session.ErrTLS, exitPermission, "check the tls block of the settings: the certificates, and the host names in servers"},
	{session.ErrNoServer, exitUnavailable, "is ZooKeeper running at that address? \"zkagent doctor\" asks each server"},
	{session.ErrAuthFailed, exitPermission, "check the auth block of the settings, or $ZKAGENT_AUTH"},
	{session.ErrExpired, exitUnavailable, "the session ended while the command ran; try again"},
	{session.ErrUnknown, exitFailed, "the reply was lost, so it may have happened or not; look before trying again"},
	{session.ErrNotEmpty, exitFailed, "--recursive deletes the znodes below it, too"},
	{session.ErrInvalidACL, exitFailed, "an ACL is SCHEME:ID:PERMISSIONS, as in world:anyone:r; the schemes are world, auth, digest, ip, sasl and x509, and auth needs an identity"},
	{session.ErrBadPath, exitUsage, "znode paths are absolute, as in /services/web"},
	{recipe.ErrFull, exitTemporary, ""},
	{recipe.ErrPriority, exitUsage, ""},
	{fleet.ErrConflict, exitTemporary, "somebody else has published; plan again"},
	{fleet.ErrFrozen, exitFailed, ""},
	{config.ErrBounds, exitFailed, "check the source directory; --force publishes it anyway"},
	{dev.ErrSettings, exitConfig, ""},
	{fs.ErrPermission, exitPermission, ""},
}

func classify(err error) *cliError {
	if e, ok := errors.AsType[*cliError](err); ok {
		return &cliError{code: e.code, err: err, hints: e.hints}
	}
	if _, ok := errors.AsType[hcl.Diagnostics](err); ok {
		return &cliError{code: exitConfig, err: err}
	}
	if errors.Is(err, session.ErrNoAuth) {
		return denied(err)
	}
	for _, c := range classes {
		if errors.Is(err, c.is) {
			e := &cliError{code: c.code, err: err}
			if c.hint != "" {
				e.hints = []string{c.hint}
			}
			return e
		}
	}
	if h, ok := errors.AsType[*term.HintError](err); ok {
		return &cliError{code: exitFailed, err: err, hints: []string{h.Hint}}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &cliError{code: exitTemporary, err: err, hints: []string{"--timeout allows more time"}}
	}
	return &cliError{code: exitFailed, err: err}
}

// refusals are the acts that an ACL refuses, by ZooKeeper's name of the operation. To
// create or delete a znode, a client needs a permission on the znode above it.
var refusals = map[string]string{
	"getData": "read it", "getChildren": "list its children", "getChildren2": "list its children", "setData": "write it",
	"getACL": "read its ACL", "setACL": "change its ACL", "delete": "delete znodes below it",
	"create": createBelow, "create2": createBelow, "createTTL": createBelow, "createContainer": createBelow,
}

const createBelow = "create znodes below it"

// denied says in one sentence which act on which znode an ACL refuses. An error that
// does not name them keeps its text.
func denied(err error) *cliError {
	var op, path string
	if e, ok := errors.AsType[*session.MultiError](err); ok {
		op, path = e.Op, e.Path
	} else if e, ok := errors.AsType[*session.Error](err); ok {
		op, path = e.Op, e.Path
	}
	act := refusals[op]
	if strings.HasSuffix(act, "below it") {
		path, _ = session.SplitPath(path)
	}
	hint := "credentials come from an auth block of the settings or from $ZKAGENT_AUTH"
	if act != "" && !strings.Contains(err.Error(), "\n") {
		err = fmt.Errorf("the ACL of %s does not permit this client to %s", path, act)
		hint += "; \"zkagent zk whoami " + term.ShellWord(path) + "\" shows your permissions"
	}
	return &cliError{code: exitPermission, err: err, hints: []string{hint}}
}

// exitCode has its name in JSON, and its texts in the man page and in the reference.
type exitCode struct {
	code             int
	name, text, when string
}

var exitCodes = []exitCode{
	{exitOK, "ok", "done; no difference", "Everything worked."},
	{exitFailed, "failed", "failed or refused; with --exit-code: there is a difference", "The command was understood and did not succeed: a check refused a file, a config is frozen, a key does not exist, a reload failed."},
	{exitUsage, "usage", "wrong usage", "Unknown commands or flags, missing arguments, a question without a terminal and without `--yes`."},
	{exitUnavailable, "unavailable", "ZooKeeper or the agent's socket cannot be reached", "No server answered in time, the session expired meanwhile, or no agent runs on this host."},
	{exitSoftware, "failed", "failed, where 1 means a difference", "Failures of commands that were given `--exit-code`."},
	{exitTemporary, "not_obtained", "not obtained in time, or another version is in use", "A lock, barrier or queue item was not obtained; `--check-version` did not match. Trying again later makes sense."},
	{exitLost, "lost", "the lock, leadership or item was lost while the command ran", "`lock` and `elect`: the session or the znode was lost. zkagent ended the command before another could begin."},
	{exitPermission, "permission", "not permitted: ACL, socket mode, file mode", "An ACL of ZooKeeper, the mode of the agent's socket or of a file does not allow it."},
	{exitConfig, "invalid_settings", "the settings are invalid", "Every command that reads settings. The unit has `RestartPreventExitStatus=78`, so that systemd does not restart an agent that cannot start."},
}

// explainUsage adds to every usage error how to use the command, and which command
// or flag the user may have meant.
func explainUsage(root *cobra.Command) {
	root.DisableSuggestions = true // ours are for every level
	root.SetFlagErrorFunc(usageError)
	root.SetUsageTemplate(usageTemplate)
	explainArgs(root)
	usage := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		if !repeatsRolloutFlags(c) {
			return usage(c)
		}
		hideRolloutFlags(c, true)
		defer hideRolloutFlags(c, false)
		err := usage(c)
		c.PrintErrln(rolloutHelp)
		return err
	})
}

// rolloutHelp stands in a help for the flags of rollouts.
const rolloutHelp = "\"zkagent config publish --help\" explains the flags of rollouts: --canary, --parallel, --bake and others."

func repeatsRolloutFlags(c *cobra.Command) bool {
	return c.Flags().Lookup("canary") != nil && c.Name() != "publish"
}

func hideRolloutFlags(c *cobra.Command, hide bool) {
	var set pflag.FlagSet
	(&strategyFlags{}).add(&set)
	set.VisitAll(func(f *pflag.Flag) { c.Flags().Lookup(f.Name).Hidden = hide })
}

func explainArgs(c *cobra.Command) {
	for _, child := range c.Commands() {
		explainArgs(child)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err == nil {
			return nil
		}
		unknown := len(args) > 0 && strings.HasPrefix(err.Error(), "unknown command")
		switch {
		case unknown && c.HasSubCommands():
			err = fmt.Errorf("%s has no command %q%s", c.CommandPath(), args[0], meant(c, args[0]))
		case unknown:
			err = fmt.Errorf("%s takes no arguments, but got %q", c.CommandPath(), args[0])
		}
		return usageError(c, err)
	}
}

// meant names the command that the user may have meant: it was chosen for the word, it
// has that name one level below, it was chosen for the word there, it has that name at
// the top, or it has a similar one.
func meant(c *cobra.Command, word string) string {
	var found [3][]string
	add := func(rank int, is bool, c *cobra.Command) {
		if is && !c.Hidden {
			found[rank] = append(found[rank], strconv.Quote(c.CommandPath()))
		}
	}
	for _, sub := range c.Commands() {
		add(0, slices.Contains(sub.SuggestFor, word), sub)
		for _, leaf := range sub.Commands() {
			add(1, leaf.Name() == word || leaf.HasAlias(word), leaf)
			add(2, slices.Contains(leaf.SuggestFor, word), leaf)
		}
	}
	if top := find(c.Root(), word); top != nil {
		add(2, true, top)
	}
	for _, list := range found {
		if len(list) > 0 {
			return "; did you mean " + strings.Join(list, " or ") + "?"
		}
	}
	names := lists.Map(c.Commands(), (*cobra.Command).Name)
	if name := template.Nearest(word, names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

const listLimit = 10

// listed are the names that exist, for an error about one that does not: those that
// the user may have meant come first.
func listed(name string, names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Sorted(slices.Values(names))
	if i := slices.Index(names, template.Nearest(name, names)); i > 0 {
		best := names[i]
		copy(names[1:], names[:i])
		names[0] = best
	}
	if len(names) > listLimit {
		return fmt.Sprintf("%s, and %d more", strings.Join(names[:listLimit], ", "), len(names)-listLimit)
	}
	return strings.Join(names, ", ")
}

// usageError is wrong usage of c, with the name of the command or flag where cobra says it
// without.
func usageError(c *cobra.Command, err error) error {
	if e, ok := errors.AsType[*cliError](err); ok {
		return e
	}
	if m := wrongCount.FindStringSubmatch(err.Error()); m != nil {
		noun := "arguments"
		if m[3] == "1" {
			noun = "argument"
		}
		verb := map[string]string{"accepts": "takes", "requires": "needs"}[m[1]]
		err = fmt.Errorf("%s %s %s%s %s, but got %s", strings.TrimSuffix(c.CommandPath(), c.Name())+cmp.Or(c.CalledAs(), c.Name()), verb, m[2], m[3], noun, m[4])
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = fmt.Errorf("--%s: %s", e.GetFlag().Name, takes(e.GetValue(), e.Unwrap().Error()))
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		err = fmt.Errorf("%s needs a value", dashed(e.GetSpecifiedName(), e.GetSpecifiedShortnames()))
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		meant := template.Nearest(e.GetSpecifiedName(), names)
		if meant != "" {
			meant = fmt.Sprintf("; did you mean %q?", "--"+meant)
		}
		err = fmt.Errorf("%s has no flag %s%s", c.CommandPath(), dashed(e.GetSpecifiedName(), e.GetSpecifiedShortnames()), meant)
	}
	return fail(exitUsage, err, usageHint(c))
}

// usageHint is the next step after wrong usage of c.
func usageHint(c *cobra.Command) string {
	hint := fmt.Sprintf("see \"%s --help\"", c.CommandPath())
	if c.Runnable() && !c.HasSubCommands() {
		hint = strings.TrimSuffix(c.UseLine(), " [flags]") + "; " + hint
	}
	return hint
}

// wrongCount is cobra's error for a wrong number of arguments.
var wrongCount = regexp.MustCompile(`^(accepts|requires) (at most |at least |between )?(\d+(?: and \d+)?) arg\(s\), (?:only )?received (\d+)$`)

// dashed is a flag as the user wrote it: on its own, or as one letter of several.
func dashed(name, letters string) string {
	if letters != "" {
		return "-" + name
	}
	return "--" + name
}

// takes says why a flag refuses a value, in place of an error of strconv or time.
func takes(value, cause string) string {
	switch {
	case strings.HasPrefix(cause, "time: "):
		return fmt.Sprintf("%q is not a duration, such as 500ms, 10s or 5m", value)
	case strings.HasPrefix(cause, "strconv.ParseBool"):
		return fmt.Sprintf("%q is neither true nor false", value)
	case strings.HasSuffix(cause, "value out of range"):
		return fmt.Sprintf("%q is too large", value)
	case strings.HasPrefix(cause, "strconv."):
		return fmt.Sprintf("%q is not a whole number", value)
	}
	return cause
}

// newOptionsCommand shows the common flags, so that no other help has to.
func newOptionsCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the flags that every command takes",
		Example: `  zkagent options`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			g.Printf("Flags of every command:\n%s", c.Root().PersistentFlags().FlagUsages())
			return nil
		},
	}
}

// usageTemplate is cobra's, without the flags that every command takes.
const usageTemplate = `Usage:{{if and .Runnable (not (index .Annotations "parent"))}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{if eq .ID "first"}}{{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}
 {{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}} {{.Name}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .LocalNonPersistentFlags.HasAvailableFlags}}

Flags:
{{.LocalNonPersistentFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

"zkagent options" lists the flags that every command takes.{{if .HasAvailableSubCommands}}
"{{.CommandPath}} [command] --help" explains a command.{{end}}
`

func newManCommand(g *globals) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "man", Short: "Write the man pages", Args: cobra.NoArgs,
		Long: "Write a man page for each command and zkagent.hcl(5), the page of the\nsettings, into a directory; or the page of zkagent itself to standard output.",
		RunE: func(c *cobra.Command, _ []string) error {
			root, header := c.Root(), &doc.GenManHeader{Section: "1", Source: "zkagent", Manual: "zkagent"}
			root.DisableAutoGenTag = true
			root.Long += "\n\n# EXIT STATUS\n\n"
			for _, e := range exitCodes {
				root.Long += fmt.Sprintf("**%d**\n: %s\n\n", e.code, e.text)
			}
			root.Long += "**126, 127, 128+n**\n: lock, elect and other commands that run a command: as in a shell; otherwise the command's code\n"
			if dir == "" {
				return doc.GenMan(root, header, g.Out)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			_, text, _ := strings.Cut(settings.Reference(), "-->\n")
			text = argumentRow.ReplaceAllString(tableHead.ReplaceAllString(text, ""), "**$1** ($2; default: $3)\n: $4\n")
			text = strings.ReplaceAll(strings.ReplaceAll(text, "; default: )", ")"), "\n## ", "\n# ")
			page := md2man.Render([]byte(manHead + text + "\n# SEE ALSO\n\n**zkagent(1)**\n"))
			if err := os.WriteFile(filepath.Join(dir, "zkagent.hcl.5"), page, 0o644); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			return doc.GenManTree(root, header, dir)
		},
	}
	c.Flags().StringVar(&dir, "directory", "", "directory to write the pages to (default: print the page of zkagent)")
	return c
}

// alreadySo adds hidden flags for scripts that ask for what the command always does.
func alreadySo(c *cobra.Command, names ...string) {
	for _, name := range names {
		c.Flags().Bool(name, true, "always so")
		must(c.Flags().MarkHidden(name))
	}
}

const manHead = "% \"ZKAGENT.HCL\" \"5\" \"\" \"zkagent\" \"zkagent\"\n\n# NAME\n\nzkagent.hcl - settings of zkagent\n\n# DESCRIPTION\n"

// Rows of the tables in the reference of the settings: an argument, its type, default
// and meaning. A terminal is too narrow for a table.
var (
	argumentRow = regexp.MustCompile(`(?m)^\| (.*?) \| (.*?) \| +(.*?) *\| (.*) \|$`)
	tableHead   = regexp.MustCompile(`(?m)^\| (argument|block) .*\n\|-.*\n`)
)
