// Package view holds the immutable values that flow from the sources of the
// agent (config trees, groups, elections) to the templates: [Tree], [Group],
// [Member], [Leader], and the [View] that they form.
//
// Guarantees: every value is immutable, so goroutines can share it without a lock. A View
// keeps unchanged values by reference, so the cost of With does not depend on their size.
//
// Not here: reading ZooKeeper, rendering, or any I/O.
package view

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Kind is the kind of a source.
type Kind string

// The kinds of sources.
const (
	KindConfig   Kind = "config"
	KindGroup    Kind = "group"
	KindGroups   Kind = "groups"
	KindElection Kind = "election"
)

// Source names one declared source of the settings, such as config "web".
type Source struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

// String returns the source as it is referred to in settings: "config.web".
func (s Source) String() string { return string(s.Kind) + "." + s.Name }

// Update is a new state of one source: whole and immutable. A producer sends one for each
// relevant change. *Tree, *Group, *Groups and *Leader implement it.
type Update interface {
	// Source returns the source of the update.
	Source() Source
	// Zxid returns the largest czxid, mzxid or pzxid that was read for this state. It
	// grows with each change.
	Zxid() int64
	// Equal reports whether other is the same state of the same source. Then there is
	// nothing to do.
	Equal(other Update) bool
}

// Leader is the leader of one election, as this agent sees it.
type Leader struct {
	Name string `json:"name"` // label of the election block
	Path string `json:"path"`
	ID   string `json:"id"`   // candidate id of the leader; empty without a leader, and when it is no name
	Term int64  `json:"term"` // czxid of the leader's znode; 0 without a leader
	Mine bool   `json:"mine"` // this agent leads, and its lease holds

	// RawID is the id that the leader gives itself, when that is not a name ([IsName]). The writer
	// of the znode chose the text, of at most 256 bytes.
	RawID string `json:"raw_id,omitempty"`
	// Znode is the path of the leader's znode, when RawID is set.
	Znode string `json:"znode,omitempty"`
}

// Source implements [Update].
func (l *Leader) Source() Source { return Source{KindElection, l.Name} }

// Zxid implements [Update].
func (l *Leader) Zxid() int64 { return l.Term }

// Equal implements [Update].
func (l *Leader) Equal(other Update) bool {
	o, ok := other.(*Leader)
	return ok && o != nil && *l == *o
}

// View is the data for templates: the latest state of each source. It is immutable. The
// zero value is an empty view.
type View struct {
	// Agent is the agent's id and host as templates see them.
	Agent Agent
	// At is when the latest update arrived (not part of any comparison).
	At time.Time

	updates map[Source]Update
}

// Agent describes a template's own agent.
type Agent struct {
	ID   string `json:"id"`
	Host string `json:"host"`
}

// With returns a view in which u has replaced the previous state of its source.
func (v View) With(u Update) View {
	m := make(map[Source]Update, len(v.updates)+1)
	maps.Copy(m, v.updates)
	m[u.Source()] = u
	v.updates = m
	return v
}

// Without returns a view without the source.
func (v View) Without(s Source) View {
	if _, ok := v.updates[s]; !ok {
		return v
	}
	m := maps.Clone(v.updates)
	delete(m, s)
	v.updates = m
	return v
}

// Get returns the latest state of a source, or nil when the source has not reported.
func (v View) Get(s Source) Update { return v.updates[s] }

// Has reports whether all of the sources have reported.
func (v View) Has(sources ...Source) bool { return len(v.Missing(sources...)) == 0 }

// Missing returns the sources that have not reported, in order.
func (v View) Missing(sources ...Source) []Source {
	var missing []Source
	for _, s := range sources {
		if _, ok := v.updates[s]; !ok {
			missing = append(missing, s)
		}
	}
	return missing
}

// Sources returns the known sources, sorted.
func (v View) Sources() []Source {
	return slices.SortedFunc(maps.Keys(v.updates), func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

func get[U Update](v View, kind Kind, name string) (U, bool) {
	u, ok := v.updates[Source{kind, name}].(U)
	return u, ok
}

// Tree returns the config tree of that name.
func (v View) Tree(name string) (*Tree, bool) { return get[*Tree](v, KindConfig, name) }

// Group returns the group of that name.
func (v View) Group(name string) (*Group, bool) { return get[*Group](v, KindGroup, name) }

// Groups returns the set of groups of that name.
func (v View) Groups(name string) (*Groups, bool) { return get[*Groups](v, KindGroups, name) }

// Leader returns the state of the election of that name.
func (v View) Leader(name string) (*Leader, bool) { return get[*Leader](v, KindElection, name) }

// Untyped converts the Run of a source: the result calls up with an Update instead of the
// source's own type. It is for a program that collects many sources in one place.
func Untyped[S any, U Update](run func(context.Context, S, func(U)) error) func(context.Context, S, func(Update)) error {
	return func(ctx context.Context, s S, up func(Update)) error {
		return run(ctx, s, func(u U) { up(u) })
	}
}

// Seconds is a duration that JSON spells as a number of seconds. Fields of this type
// end in _seconds.
type Seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var n float64
	err := json.Unmarshal(data, &n)
	*s = Seconds(n * float64(time.Second))
	return err
}

// String implements fmt.Stringer.
func (s Seconds) String() string { return time.Duration(s).String() }
