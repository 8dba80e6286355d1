// Package command builds the commands of checks, reloads and hooks: their arguments,
// and what the agent passes to them in the environment and on the standard input.
// Package proc runs them.
package command

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
)

// Command is an argument list whose elements are evaluated when it runs.
// There is no shell.
type Command struct {
	// Text is the command as the settings spell it, for status and logs.
	Text string
	// Args evaluates the arguments; nil means that there is no command.
	Args func(Vars) ([]string, error) `json:"-"`
	// Env is what it gets beside PATH, HOME and LANG.
	Env Env
}

// Set reports whether there is a command.
func (c Command) Set() bool { return c.Args != nil }

// Vars is what a command may refer to when it runs.
type Vars struct {
	Staged      string // the staged file (of a bundle: of its first template)
	StagedDir   string // private directory in which every file stands under its destination path
	Destination string
	Each        *template.Each
}

// Run runs one command to its end. Tests in virtual time replace proc.Run.
type Run func(ctx context.Context, c proc.Command) (proc.Result, error)

// ErrNotLeading says that a command was left to the leader.
var ErrNotLeading = errors.New("another host leads")

// LeaderReload is a reload that only the leader of an election runs.
type LeaderReload struct {
	Election string
	Bundle   string
	Zxids    map[string]int64 // of the sources that were rendered, by "kind.name"; never empty
	Digest   string           // of the files that are in place
	Repair   bool             // the files are as before, after something else changed them
}

// Env is what a command gets beside PATH, HOME and LANG.
type Env struct {
	Set  map[string]string `json:"-"` // variable -> value
	Pass []string          // names and globs of variables of the agent's own environment
}

// Over returns the variables of e with those of base below them.
func (e Env) Over(base Env) Env {
	set := maps.Clone(base.Set)
	if set == nil {
		set = e.Set
	} else {
		maps.Copy(set, e.Set)
	}
	return Env{set, slices.Concat(base.Pass, e.Pass)}
}

// List resolves the variables, as "NAME=value". A value that is set wins over one
// that is passed on.
func (e Env) List() []string {
	var list []string
	if len(e.Pass) > 0 {
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); e.passes(name) {
				list = append(list, v)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Set)) {
		list = append(list, name+"="+e.Set[name])
	}
	return list
}

// own are variables by which the service manager talks to the agent: a glob does
// not pass them on, only their name does.
var own = []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY"}

func (e Env) passes(name string) bool {
	if _, set := e.Set[name]; set {
		return false
	}
	return slices.ContainsFunc(e.Pass, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return glob == name || err == nil && ok && !slices.Contains(own, name)
	})
}
