package template

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

func viewFunctions() map[string]function {
	return map[string]function{
		"key":           {make: func(st *state) any { return st.key }},
		"keyOrDefault":  {make: func(st *state) any { return st.keyOr(true) }},
		"keyOrAbsent":   {make: func(st *state) any { return st.keyOr(false) }},
		"keyExists":     {make: func(st *state) any { return st.keyExists }},
		"ls":            {make: func(st *state) any { return st.pairs(false, false) }},
		"safeLs":        {make: func(st *state) any { return st.pairs(false, true) }},
		"tree":          {make: func(st *state) any { return st.pairs(true, false) }},
		"safeTree":      {make: func(st *state) any { return st.pairs(true, true) }},
		"members":       {make: func(st *state) any { return st.members }},
		"service":       {make: func(st *state) any { return st.members }},
		"groups":        {make: func(st *state) any { return st.groups }},
		"leader":        {make: func(st *state) any { return st.leader }},
		"rawLeaderID":   {make: func(st *state) any { return st.rawLeaderID }},
		"rawGroupNames": {make: func(st *state) any { return st.rawGroupNames }},
		"isLeader":      {make: func(st *state) any { return st.isLeader }},
		"version":       {make: func(st *state) any { return st.version }},
		"agent":         {make: func(st *state) any { return func() view.Agent { return st.view.Agent } }},
	}
}

func (st *state) unknown(kind view.Kind, name string) error {
	var names []string
	for _, s := range st.view.Sources() {
		if s.Kind == kind {
			names = append(names, s.Name)
		}
	}
	return failf(ErrUnknown, "", "%s %q is %v%s", kind, name, ErrUnknown, meant(name, names))
}

// config returns the tree that a path begins with, and the rest of the path.
func (st *state) config(path string) (*view.Tree, string, error) {
	name, rest, _ := strings.Cut(strings.Trim(path, "/"), "/")
	t, ok := st.view.Tree(name)
	if !ok {
		return nil, "", st.unknown(view.KindConfig, name)
	}
	st.reads = append(st.reads, read{tree: t, name: name, prefix: rest})
	return t, rest, nil
}

// lookup returns the value at "config/key".
func (st *state) lookup(path string) (string, bool, error) {
	t, key, err := st.config(path)
	if err != nil {
		return "", false, err
	}
	if key == "" {
		return "", false, failf(ErrMissing, path, "key %q names a config and no key: write \"%s/KEY\"", path, strings.Trim(path, "/"))
	}
	k, found := t.Get(key)
	return string(k.Value), found, nil
}

// key returns a value that must be there: while it is not, the file stays as it
// is, whatever error_on_missing_key says of maps.
func (st *state) key(path string) (string, error) {
	value, found, err := st.lookup(path)
	if err == nil && !found {
		name, key, _ := strings.Cut(strings.Trim(path, "/"), "/")
		return "", failf(ErrNoKey, path, "config %q has no key %q%s", name, key, st.meantKey(name, key))
	}
	return value, err
}

// meantKey suggests a key; only small trees are searched.
func (st *state) meantKey(name, key string) string {
	t, ok := st.view.Tree(name)
	if !ok || t.Len() > 1000 {
		return ""
	}
	var keys []string
	t.Walk("", func(path string, _ view.Key) bool {
		keys = append(keys, path)
		return true
	})
	return meant(key, keys)
}

// keyOr returns a value or a default: for a key that is absent, or an empty one, too.
func (st *state) keyOr(empty bool) func(path, def string) (string, error) {
	return func(path, def string) (string, error) {
		value, found, err := st.lookup(path)
		if err == nil && (!found || empty && value == "") {
			value = def
		}
		return value, err
	}
}

func (st *state) keyExists(path string) (bool, error) {
	_, found, err := st.lookup(path)
	return found, err
}

// pairs returns the function for the keys below a path, sorted bytewise by path.
func (st *state) pairs(deep, notEmpty bool) func(path string) ([]Pair, error) {
	return func(path string) ([]Pair, error) {
		t, prefix, err := st.config(path)
		if err != nil {
			return nil, err
		}
		list := pairsOf(t.Name, prefix, deep, func(yield func(string, view.Key) bool) { t.Walk(prefix, yield) })
		if notEmpty && len(list) == 0 {
			err = noKeyBelow(path)
		}
		return list, err
	}
}

// pairsOf returns the keys below a prefix, all or the direct ones. Their texts are one
// piece of memory: for a tree of 1,000 keys they would else be 2,000.
func pairsOf(name, prefix string, deep bool, keys iter.Seq2[string, view.Key]) []Pair {
	below := func(path string) string {
		rest := strings.TrimPrefix(strings.TrimPrefix(path, prefix), "/")
		if !deep && strings.Contains(rest, "/") {
			return ""
		}
		return rest
	}
	n, size := 0, 0
	for path, k := range keys {
		if below(path) != "" {
			n, size = n+1, size+len(name)+1+len(path)+len(k.Value)
		}
	}
	var text strings.Builder
	text.Grow(size)
	pairs := make([]Pair, 0, n)
	for path, k := range keys {
		key := below(path)
		if key == "" {
			continue
		}
		from := text.Len()
		text.WriteString(name)
		text.WriteByte('/')
		text.WriteString(path)
		value := text.Len()
		text.Write(k.Value)
		all := text.String()
		pairs = append(pairs, Pair{Path: all[from:value], Key: all[value-len(key) : value], Value: all[value:]})
	}
	return pairs
}

func noKeyBelow(path string) error {
	return failf(ErrNoKey, path, "there is no key below %q", path)
}

// Leader is the leader of an election: who it is, and its term.
type Leader struct {
	Name string // of the election
	Path string // of the election
	ID   string // a name; empty while nobody leads, or when the leader's id is no name
	Term int64
	Mine bool // this agent leads
}

func (st *state) election(name string) (*view.Leader, error) {
	l, ok := st.view.Leader(name)
	if !ok {
		return &view.Leader{}, st.unknown(view.KindElection, name)
	}
	return l, nil
}

func (st *state) leader(name string) (Leader, error) {
	l, err := st.election(name)
	return Leader{Name: l.Name, Path: l.Path, ID: l.ID, Term: l.Term, Mine: l.Mine}, err
}

// rawLeaderID returns what the leader calls itself, even when that is no name.
func (st *state) rawLeaderID(name string) (string, error) {
	l, err := st.election(name)
	return cmp.Or(l.RawID, l.ID), err
}

// rawGroupNames returns the children of a set that are not groups, because they are no
// names.
func (st *state) rawGroupNames(name string) ([]string, error) {
	gs, ok := st.view.Groups(name)
	if !ok {
		return nil, st.unknown(view.KindGroups, name)
	}
	return slices.Clone(gs.RawNames), nil
}

func (st *state) isLeader(name string) (bool, error) {
	l, err := st.election(name)
	return l.Mine, err
}

func (st *state) version(name string) (string, error) {
	t, ok := st.view.Tree(name)
	if !ok {
		return "", st.unknown(view.KindConfig, name)
	}
	return t.Version(), nil
}
