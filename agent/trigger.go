package agent

import (
	"encoding/json"
	"strconv"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// Values of ZKAGENT_EVENT.
const (
	eventChange    = "change"
	eventSchedule  = "schedule"
	eventElected   = "elected"
	eventDeposed   = "deposed"
	eventCheck     = "check"
	eventReload    = "reload"
	eventPostCheck = "post_check"
	eventManual    = "manual"
)

// trigger is why a command runs: what it is told in its environment and on
// its standard input.
type trigger struct {
	Event       string        `json:"event"`
	Agent       string        `json:"agent"`
	Name        string        `json:"name"` // of the hook or template
	Destination string        `json:"destination,omitempty"`
	Version     string        `json:"version,omitempty"` // generation of the config that changed
	Term        int64         `json:"term,omitempty"`
	Changes     []changeEntry `json:"changes"`

	hook bool
}

// changeEntry is one change in a trigger.
type changeEntry struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// env is the trigger as environment variables. Their values are names from
// the settings and numbers, never data from ZooKeeper.
func (t trigger) env() []string {
	env := []string{"ZKAGENT_EVENT=" + t.Event}
	if t.hook {
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

// command is the command with the trigger's environment and input.
func (t trigger) command(args []string) proc.Command {
	if t.Changes == nil {
		t.Changes = []changeEntry{}
	}
	in, err := json.Marshal(t)
	if err != nil {
		in = []byte("{}") // plain strings and numbers always marshal.
	}
	return proc.Command{Args: args, Env: t.env(), Stdin: append(in, '\n')}
}

// changes lists what differs between two views for the given sources.
func changes(old, next view.View, sources []view.Source) []changeEntry {
	var list []changeEntry
	for _, s := range sources {
		u, o := next.Get(s), old.Get(s)
		if u == nil || (o != nil && o.Zxid() == u.Zxid()) {
			continue
		}
		c := changeEntry{Kind: string(s.Kind), Name: s.Name, To: version(u)}
		if o != nil {
			c.From = version(o)
		}
		list = append(list, c)
	}
	return list
}

// version names a state of a source: the generation of a tree, else its zxid.
func version(u view.Update) string {
	if t, ok := u.(*view.Tree); ok {
		return t.Version()
	}
	return strconv.FormatInt(u.Zxid(), 10)
}

// configVersion is the version of the first config among the sources.
func configVersion(v view.View, sources []view.Source) string {
	for _, s := range sources {
		if t, ok := v.Get(s).(*view.Tree); ok {
			return t.Version()
		}
	}
	return ""
}
