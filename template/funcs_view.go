package template

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"text/template/parse"

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
		var keys []string
		if t, _ := st.view.Tree(name); t.Len() <= 1000 {
			t.Walk("", func(path string, _ view.Key) bool {
				keys = append(keys, path)
				return true
			})
		}
		return "", failf(ErrNoKey, path, "config %q has no key %q%s", name, key, meant(key, keys))
	}
	return value, err
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

// A template gets the members that may get traffic: those whose status is up.
// Others have to be asked for by name. What happens when it gets none is the
// group's on_empty; where that is not set, the template itself says it: one with
// an else for the group is rendered, for another the file stays as it is.

// Group is one group of a set as the function groups returns it.
type Group struct {
	Name    string
	Path    string
	Members []view.Member
	Tags    []string // of all its members, of every status
}

// statusAny asks for the members of every status.
const statusAny = "any"

var statuses = []string{statusAny, view.StatusUp, view.StatusDraining, view.StatusMaintenance, view.StatusDown}

func checkStatus(words ...string) error {
	for _, word := range words {
		if !slices.Contains(statuses, word) {
			return failf(nil, "", "a status is one of %s, not %q%s", strings.Join(statuses, ", "), word, meantStatus[word])
		}
	}
	return nil
}

// meantStatus translates the words of other programs.
var meantStatus = map[string]string{
	"passing": `; members that are up are what members gives without a word`,
	"drain":   `; did you mean "draining"?`, "maint": `; did you mean "maintenance"?`,
	"critical": `; did you mean "down"?`, "warning": `; did you mean "down"?`,
}

// absent is a group that a set does not have.
var absent = &view.Group{}

// group returns a group by its name, or "set/group" of a set of groups. A group
// that a set does not have is one without members.
func (st *state) group(name string) (*view.Group, error) {
	if g, ok := st.view.Group(name); ok {
		return g, nil
	}
	if set, child, ok := strings.Cut(name, "/"); ok {
		if gs, known := st.view.Groups(set); known {
			if g, found := gs.Group(child); found {
				return g, nil
			}
			return absent, nil
		}
	}
	return nil, st.unknown(view.KindGroup, name)
}

// members returns the members of a group that may get traffic, or those with
// one of the statuses.
func (st *state) members(name string, wanted ...string) ([]view.Member, error) {
	if err := checkStatus(wanted...); err != nil {
		return nil, err
	}
	g, err := st.group(name)
	if err != nil {
		return nil, err
	}
	members, needed := st.printable(g.Members), true
	switch {
	case len(wanted) == 0:
		members = serving(members)
	case !slices.Contains(wanted, statusAny):
		members, needed = withStatus(members, wanted), slices.Contains(wanted, view.StatusUp) // No draining member is the normal case.
	}
	if len(members) == 0 && needed {
		err = emptyGroup(name, g.OnEmpty, st.t.elses.of(name))
	}
	if err != nil && g == absent {
		set, child, _ := strings.Cut(name, "/")
		err = failf(ErrEmptyGroup, "", "groups %q has no group %q: the file stays as it is", set, child)
	}
	if st.t.cfg.ByNode {
		members = slices.SortedStableFunc(slices.Values(members), func(a, b view.Member) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID)) })
	}
	return members, err
}

// printable leaves out the members whose value of a label that the template
// names is no token, or was left out. The writer of one member could otherwise hold the
// file of all.
func (st *state) printable(all []view.Member) []view.Member {
	raw := func(m view.Member) bool {
		return slices.ContainsFunc(st.t.labels, func(name string) bool {
			_, raw := m.RawLabels[name]
			_, kept := m.Labels[name]
			return raw || !kept && m.LabelsLeftOut != ""
		})
	}
	if len(st.t.labels) == 0 || !slices.ContainsFunc(all, raw) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), raw)
}

// serving are the members that may get traffic.
func serving(all []view.Member) []view.Member {
	if !slices.ContainsFunc(all, func(m view.Member) bool { return !m.MayServe() }) {
		return all
	}
	return withStatus(all, []string{view.StatusUp})
}

func withStatus(all []view.Member, wanted []string) []view.Member {
	members := []view.Member{}
	for _, m := range all {
		if slices.Contains(wanted, m.Status) {
			members = append(members, m)
		}
	}
	return members
}

// The values of a group's OnEmpty. Empty: the template decides.
const (
	onEmptyKeep   = "keep"
	onEmptyRender = "render"
	onEmptyFail   = "fail"
)

// emptyGroup is the error of a group without members; nil where they are not
// needed.
func emptyGroup(name, onEmpty string, hasElse bool) error {
	switch {
	case onEmpty == onEmptyRender, onEmpty == "" && hasElse:
		return nil
	case onEmpty == onEmptyFail:
		return failf(nil, "", "group %q has no members that are up (on_empty = \"fail\")", name)
	case onEmpty == "":
		return failf(ErrEmptyGroup, "", "group %q has no members that are up: the file stays as it is (the template has no {{ else }} for this case)", name)
	}
	return failf(ErrEmptyGroup, "", "group %q has no members that are up: the file stays as it is (on_empty = %q)", name, onEmptyKeep)
}

// groups returns the groups of a set, or those with a member of one of the statuses.
func (st *state) groups(name string, wanted ...string) ([]Group, error) {
	gs, ok := st.view.Groups(name)
	if !ok {
		return nil, st.unknown(view.KindGroups, name)
	}
	if err := checkStatus(wanted...); err != nil {
		return nil, err
	}
	list := make([]Group, 0, len(gs.Groups))
	for _, g := range gs.Groups {
		if len(wanted) == 0 || slices.Contains(wanted, statusAny) && len(g.Members) > 0 || len(withStatus(g.Members, wanted)) > 0 {
			tags := []string{}
			for _, m := range g.Members {
				tags = append(tags, m.Tags()...)
			}
			slices.Sort(tags)
			list = append(list, Group{g.Name, g.Path, serving(g.Members), slices.Compact(tags)})
		}
	}
	return list, nil
}

// elses are the groups for which a template says, by an else, what to write
// when they have no members:
//
//	{{ range members "api" }}...{{ else }}...{{ end }}
//
// A with and an if about the members count as a range does, and so do members
// that were put into a variable before.
type elses struct {
	names []string // of groups
	named []string // all groups that stand in the text
	any   bool     // of a group whose name is computed
	each  bool     // of the element of for_each
}

// of reports whether the template says what to write when a group is empty.
func (e *elses) of(name string) bool {
	return slices.Contains(e.names, name) || e.any && !slices.Contains(e.named, name)
}

// Else reports whether the template has an else for the case that the group of that
// name has no members.
func (t *Template) Else(group string) bool { return t.elses.of(group) }

func findElses(t *Template) elses {
	var e elses
	for _, tree := range t.sortedTrees() {
		vars := map[string]elses{}
		inspect(tree.Root, func(n parse.Node) {
			if p, ok := n.(*parse.PipeNode); ok {
				about := aboutGroups(p, vars, false)
				e.named = append(e.named, about.names...)
				for _, d := range p.Decl {
					v := vars[d.Ident[0]]
					v.add(about)
					vars[d.Ident[0]] = v
				}
			}
		})
		e.branches(tree.Root, vars, tree.Name == t.cfg.Name)
	}
	return e
}

func (e *elses) add(o elses) {
	e.names = append(e.names, o.names...)
	e.any, e.each = e.any || o.any, e.each || o.each
}

// branches finds those with an else. The dot is the element of for_each at the
// top of the template.
func (e *elses) branches(list *parse.ListNode, vars map[string]elses, top bool) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		b, isRange := branchOf(n)
		if b == nil {
			continue
		}
		if b.ElseList != nil {
			e.add(aboutGroups(b.Pipe, vars, top))
		}
		_, isWith := n.(*parse.WithNode)
		e.branches(b.List, vars, top && !isRange && !isWith)
		e.branches(b.ElseList, vars, top)
	}
}

func aboutGroups(p *parse.PipeNode, vars map[string]elses, top bool) elses {
	var e elses
	inspect(p, func(n parse.Node) {
		switch n := n.(type) {
		case *parse.CommandNode:
			id, ok := n.Args[0].(*parse.IdentifierNode)
			if !ok || accesses[id.Ident] != accesses["members"] {
				return
			}
			if len(n.Args) < 2 {
				e.any = true
			} else if name, whole, _ := constant(n.Args[1]); whole {
				e.names = append(e.names, name)
			} else {
				e.any = true
			}
		case *parse.VariableNode:
			e.add(vars[n.Ident[0]])
			e.each = e.each || slices.Equal(n.Ident, []string{"$", "Value"})
		case *parse.FieldNode:
			e.each = e.each || top && slices.Equal(n.Ident, []string{"Value"})
		}
	})
	return e
}
