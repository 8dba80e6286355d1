// Package command builds the commands of checks, reloads and hooks: their arguments,
// and what the agent passes to them in the environment and on the standard input.
// Package proc runs them.
package command

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/internal/proc"
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
	Each        *Each
}

// Each is the element of a for_each for which a bundle is rendered.
type Each struct {
	Key   string
	Value any // []view.Member, view.Member or the value of a key
}

// Run runs one command to its end. Tests in virtual time replace proc.Run.
type Run func(ctx context.Context, c proc.Command) (proc.Result, error)

// ErrNotLeading says that a command was left to the leader.
var ErrNotLeading = errors.New("another host leads")

// LeaderReload is a reload that only the leader of an election runs.
type LeaderReload struct {
	Election string
	Bundle   string
	Zxids    map[string]int64 // of the sources that were rendered, by "kind.name"
	Digest   string           // of the files that are in place
	Repair   bool             // the files are as before, after something else changed them
}
