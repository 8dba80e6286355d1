// Package command builds the commands of checks, reloads and hooks: their arguments,
// and what the agent passes to them in the environment and on the standard input.
// Package proc runs them.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
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
	Term     int64 // in which it was asked for
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
	set := map[string]string{}
	maps.Copy(set, base.Set)
	maps.Copy(set, e.Set)
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

// Values of ZKAGENT_EVENT.
const (
	EventChange    = "change"
	EventSchedule  = "schedule"
	EventElected   = "elected"
	EventDeposed   = "deposed"
	EventCheck     = "check"
	EventReload    = "reload"
	EventPostCheck = "post_check"
	EventManual    = "manual"
)

// Trigger is why a command runs. The command gets it in its environment and
// on its standard input.
type Trigger struct {
	Event       string   `json:"event"`
	Agent       string   `json:"agent"`
	Name        string   `json:"name"` // of the hook or template
	Destination string   `json:"destination,omitempty"`
	Version     string   `json:"version,omitempty"` // generation of the config that changed
	Term        int64    `json:"term,omitempty"`
	Changes     []Change `json:"changes"`

	Hook bool `json:"-"` // a hook, not a template
}

// Change is one change in a trigger.
type Change struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// env is the trigger as environment variables. Their values are names from
// the settings and numbers, never data from ZooKeeper.
func (t Trigger) env() []string {
	env := []string{"ZKAGENT_EVENT=" + t.Event}
	if t.Hook {
		env = append(env, "ZKAGENT_HOOK="+t.Name)
	} else {
		env = append(env, "ZKAGENT_TEMPLATE="+t.Name)
	}
	if t.Version != "" {
		env = append(env, "ZKAGENT_VERSION="+t.Version)
	}
	if t.Term != 0 {
		term := strconv.FormatInt(t.Term, 10)
		env = append(env, "ZKAGENT_TERM="+term, "ZKAGENT_FENCE="+term)
	}
	return env
}

// Command is the run of c with these arguments: with its own environment, and the
// trigger's environment and input.
func (t Trigger) Command(c Command, args []string) proc.Command {
	if t.Changes == nil {
		t.Changes = []Change{}
	}
	in, err := json.Marshal(t)
	if err != nil {
		in = []byte("{}") // plain strings and numbers always marshal.
	}
	return proc.Command{Args: args, Env: append(c.Env.List(), t.env()...), Stdin: append(in, '\n')}
}

// Changes lists what differs between two views for the given sources.
func Changes(old, next view.View, sources []view.Source) []Change {
	var list []Change
	for _, s := range sources {
		u, o := next.Get(s), old.Get(s)
		if u == nil || (o != nil && o.Zxid() == u.Zxid()) {
			continue
		}
		c := Change{Kind: string(s.Kind), Name: s.Name, To: Version(u)}
		if o != nil {
			c.From = Version(o)
		}
		list = append(list, c)
	}
	return list
}

// Version names a state of a source: the generation of a tree, else its zxid.
func Version(u view.Update) string {
	if t, ok := u.(*view.Tree); ok {
		return t.Version()
	}
	return strconv.FormatInt(u.Zxid(), 10)
}

// ConfigVersion is the version of the first config among the sources.
func ConfigVersion(v view.View, sources []view.Source) string {
	for _, s := range sources {
		if t, ok := v.Get(s).(*view.Tree); ok {
			return t.Version()
		}
	}
	return ""
}
