package command

import (
	"encoding/json"
	"strconv"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

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
