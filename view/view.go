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
	"strconv"
	"strings"
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

// Tree is one config tree at one moment: all of its keys as of one
// generation. Keys are paths relative to the root, without a leading slash.
type Tree struct {
	Name string // label of the config block
	Path string // root znode
	// Generation is the czxid of the ready znode in a flat tree, the version
	// number in a versioned one, and 0 in a plain one.
	Generation int64
	// Layout is flat, versioned or plain.
	Layout string
	// Digest is the digest of a versioned tree ("sha256:..."), else empty.
	Digest string
	// Previous is the version before this one in a versioned tree. Rollout is the name
	// of the rollout of this version; empty without a rollout.
	Previous int64
	Rollout  string
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64

	keys *Keys
}

// NewTree returns a tree with the given keys, which are shared, not copied.
func NewTree(t Tree, keys *Keys) *Tree {
	if keys == nil {
		keys = &Keys{}
	}
	t.keys = keys
	return &t
}

// TreeOf returns a tree made of a map, for tests and fixtures.
func TreeOf(name, path string, keys map[string]string) *Tree {
	values := make(map[string][]byte, len(keys))
	for k, v := range keys {
		values[k] = []byte(v)
	}
	return NewTree(Tree{Name: name, Path: path, Layout: "flat", Generation: 1, Last: 1}, KeysOf(values))
}

// Source implements [Update].
func (t *Tree) Source() Source { return Source{KindConfig, t.Name} }

// Zxid implements [Update].
func (t *Tree) Zxid() int64 { return t.Last }

// Equal implements [Update]: the same generation of the same content.
func (t *Tree) Equal(other Update) bool {
	o, ok := other.(*Tree)
	if !ok || o == nil || t.Name != o.Name || t.Path != o.Path || t.Generation != o.Generation || t.Layout != o.Layout || t.Digest != o.Digest {
		return false
	}
	return t.SameKeys(o)
}

// SameKeys reports whether both trees hold the same keys and values.
func (t *Tree) SameKeys(o *Tree) bool {
	return t.keys == o.keys || t.keys.Len() == o.keys.Len() && t.keys.sameRange(o.keys, "")
}

// Version returns the generation in the form that templates show.
func (t *Tree) Version() string { return strconv.FormatInt(t.Generation, 10) }

// Len returns the number of keys.
func (t *Tree) Len() int { return t.keys.Len() }

// Keys returns the keys themselves, for producers and comparisons.
func (t *Tree) Keys() *Keys { return t.keys }

// Get returns the key at the path.
func (t *Tree) Get(path string) (Key, bool) { return t.keys.Get(path) }

// Walk calls fn for each key below prefix (a path; empty = all) in bytewise
// order of the paths until fn returns false. A prefix "a/b" covers "a/b" and
// "a/b/c", not "a/bc".
func (t *Tree) Walk(prefix string, fn func(path string, k Key) bool) {
	if prefix != "" {
		if k, ok := t.keys.Get(prefix); ok && !fn(prefix, k) {
			return
		}
		prefix += "/"
	}
	t.keys.walk(prefix, func(p string, k Key) bool { return strings.HasPrefix(p, prefix) && fn(p, k) })
}

// SharesBelow reports whether both trees hold the same keys and values at and below
// prefix. It does not compare shared chunks.
func (t *Tree) SharesBelow(o *Tree, prefix string) bool {
	if t == o || t.keys == o.keys {
		return true
	}
	if prefix == "" {
		return t.keys.sameRange(o.keys, "")
	}
	a, oka := t.Get(prefix)
	b, okb := o.Get(prefix)
	return oka == okb && a.same(b) && t.keys.sameRange(o.keys, prefix+"/")
}
