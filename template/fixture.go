package template

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/view"
)

// fixture is the YAML form of a view:
//
//	agent: {id: host2, host: host2.example.com}
//	configs:
//	  web: {timeout: 30s, backends: {a: 10.0.0.1:80}}   # nested, or "a/b": value
//	groups:
//	  api:
//	    on_empty: keep
//	    members: [{host: 10.0.0.1, port: 8080, labels: {zone: a}}]
//	group_sets:
//	  all: {api: {members: [...]}}
//	elections:
//	  nightly: {id: host1, term: 17, mine: false}
type fixture struct {
	Agent     view.Agent                         `yaml:"agent"`
	Configs   map[string]Fixture                 `yaml:"configs"`
	Versions  map[string]scalar[int64]           `yaml:"versions"`
	Groups    map[string]fixtureGroup            `yaml:"groups"`
	GroupSets map[string]map[string]fixtureGroup `yaml:"group_sets"`
	Elections map[string]fixtureLeader           `yaml:"elections"`
}

type fixtureLeader struct {
	ID   string        `yaml:"id"`
	Term scalar[int64] `yaml:"term"`
	Mine scalar[bool]  `yaml:"mine"`
}

type fixtureGroup struct {
	OnEmpty string          `yaml:"on_empty"`
	Members []fixtureMember `yaml:"members"`
}

type fixtureMember struct {
	ID     string                 `yaml:"id"`
	Node   string                 `yaml:"node"`
	Znode  string                 `yaml:"znode"`
	Held   scalar[bool]           `yaml:"held"`
	Name   string                 `yaml:"name"`
	Host   string                 `yaml:"host"`
	Port   scalar[int]            `yaml:"port"`
	Ports  map[string]scalar[int] `yaml:"ports"`
	Weight *scalar[int]           `yaml:"weight"`
	Status string                 `yaml:"status"`
	Labels map[string]string      `yaml:"labels"`
	Czxid  scalar[int64]          `yaml:"czxid"`
}

// scalar is a number or a bool, which may be quoted.
type scalar[T int | int64 | bool] struct{ v T }

func (s *scalar[T]) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(text), &s.v); err != nil {
		return fmt.Errorf("%q is not of the type %T", text, s.v)
	}
	return nil
}

// Fixture is data for templates in YAML or JSON, as [LoadFixture] describes: the values
// of YAML as they are written. y, no, 0644, 1.10 and 1e3 are texts, as keys and as
// values. LoadFixture parses the numbers and bools.
type Fixture struct {
	v any // nil, string, []Fixture or map[string]Fixture
}

// UnmarshalYAML implements the interface of the parser. It is not called for a null.
func (f *Fixture) UnmarshalYAML(unmarshal func(any) error) error {
	var keys map[string]Fixture
	var list []Fixture
	var text string
	switch {
	case unmarshal(&keys) == nil:
		f.v = keys
	case unmarshal(&list) == nil:
		f.v = list
	default:
		err := unmarshal(&text)
		f.v = text
		return err
	}
	return nil
}

// MarshalYAML implements the interface of the writer: every scalar is a quoted text.
func (f Fixture) MarshalYAML() (any, error) { return f.v, nil }

// ParseFixture reads a fixture.
func ParseFixture(data []byte) (Fixture, error) {
	var f Fixture
	err := yaml.Unmarshal(data, &f)
	return f, err
}

// Over is the fixture laid over another: maps are merged, a null unsets the value that the
// other has, and everything else replaces. A fixture that is null changes nothing.
func (f Fixture) Over(under Fixture) Fixture {
	keys, isMap := f.v.(map[string]Fixture)
	switch {
	case f.v == nil:
		return under
	case !isMap:
		return f
	}
	merged := map[string]Fixture{}
	below, _ := under.v.(map[string]Fixture)
	maps.Copy(merged, below)
	for k, v := range keys {
		if v.v == nil {
			delete(merged, k)
			continue
		}
		merged[k] = v.Over(merged[k])
	}
	return Fixture{merged}
}

var unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)

// UnmarshalStrict decodes YAML or JSON into v. A key that v does not have is an error,
// which names the line and the key.
func UnmarshalStrict(data []byte, v any) error {
	err := yaml.UnmarshalStrict(data, v)
	if err == nil {
		return nil
	}
	return errors.New(unknownKey.ReplaceAllString(err.Error(), `unknown key "$1"`))
}

// View is the view that the fixture describes.
func (f Fixture) View() (view.View, error) {
	text, err := yaml.Marshal(f)
	if err != nil {
		return view.View{}, err
	}
	return LoadFixture(text)
}

// LoadFixture returns the view that a YAML (or JSON) text describes, for
// tests of templates and for rendering without ZooKeeper. Texts are taken as they
// are written. Unknown fields are errors.
func LoadFixture(data []byte) (view.View, error) {
	var f fixture
	if err := UnmarshalStrict(data, &f); err != nil {
		return view.View{}, fmt.Errorf("read fixture: %w", err)
	}
	v := view.View{Agent: f.Agent}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.Configs)) {
		t, err := fixtureTree(name, f.Configs[name], f.Versions[name].v)
		errs = append(errs, err)
		if err == nil {
			v = v.With(t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		g, err := f.Groups[name].group(name)
		errs = append(errs, err)
		v = v.With(g)
	}
	for _, name := range slices.Sorted(maps.Keys(f.GroupSets)) {
		set := &view.Groups{Name: name, Path: "/" + name}
		for _, child := range slices.Sorted(maps.Keys(f.GroupSets[name])) {
			g, err := f.GroupSets[name][child].group(child)
			errs = append(errs, err)
			set.Groups = append(set.Groups, g)
		}
		v = v.With(set)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Elections)) {
		l := f.Elections[name]
		v = v.With(&view.Leader{Name: name, Path: "/" + name, ID: l.ID, Term: l.Term.v, Mine: l.Mine.v})
	}
	if err := errors.Join(errs...); err != nil {
		return view.View{}, fmt.Errorf("read fixture: %w", err)
	}
	return v, nil
}

func fixtureTree(name string, content Fixture, version int64) (*view.Tree, error) {
	keys := map[string]string{}
	m, isMap := content.v.(map[string]Fixture)
	if content.v != nil && !isMap {
		return nil, fmt.Errorf("config %q is not a map of keys", name)
	}
	if err := flatten(keys, "", m); err != nil {
		return nil, fmt.Errorf("config %q: %w", name, err)
	}
	t := view.TreeOf(name, "/"+name, keys)
	t.Generation = cmp.Or(version, 1)
	return t, nil
}

func flatten(keys map[string]string, prefix string, m map[string]Fixture) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		path := prefix + name
		switch v := m[name].v.(type) {
		case map[string]Fixture:
			if err := flatten(keys, path+"/", v); err != nil {
				return err
			}
		case []Fixture:
			return fmt.Errorf("key %q is a list: values are texts", path)
		default:
			keys[path], _ = v.(string)
		}
	}
	return nil
}

// group makes the group as production would: what a registration cannot be is no
// member, and an id twice is an error.
func (f fixtureGroup) group(name string) (*view.Group, error) {
	g := &view.Group{Name: name, Path: "/" + name, OnEmpty: f.OnEmpty}
	if f.OnEmpty != "" && f.OnEmpty != onEmptyKeep && f.OnEmpty != onEmptyRender && f.OnEmpty != onEmptyFail {
		return g, fmt.Errorf("group %q: on_empty %q is not one of keep, render, fail", name, f.OnEmpty)
	}
	seen := map[string]bool{}
	for i, m := range f.Members {
		member, err := m.member(i)
		if err == nil && seen[member.Znode] {
			err = fmt.Errorf("the id %q is taken", member.Znode)
		}
		if err != nil {
			return g, fmt.Errorf("group %q: member %d: %w", name, i+1, err)
		}
		seen[member.Znode] = true
		g.Members = append(g.Members, member)
	}
	slices.SortFunc(g.Members, view.CompareMembers)
	return g, nil
}

func (m *fixtureMember) member(i int) (view.Member, error) {
	znode := cmp.Or(m.Znode, m.ID, fmt.Sprintf("member_%010d", i))
	var ports map[string]int
	for k, p := range m.Ports {
		if ports == nil {
			ports = map[string]int{}
		}
		ports[k] = p.v
	}
	member := view.Member{
		ID: cmp.Or(m.ID, znode), Node: cmp.Or(m.Node, m.Host), Znode: znode, Name: cmp.Or(m.Name, znode), Host: m.Host,
		Port: m.Port.v, Ports: ports, Weight: cmp.Or(m.Weight, &scalar[int]{1}).v, Status: cmp.Or(m.Status, view.StatusUp), Held: m.Held.v, Czxid: m.Czxid.v, Mzxid: m.Czxid.v,
	}
	member.SetLabels(m.Labels)
	switch {
	case m.Host == "":
		return member, errors.New("it has no host")
	case m.Port.v < 0 || m.Port.v > 65535:
		return member, fmt.Errorf("port %d is not in 0..65535", m.Port.v)
	case !slices.Contains(statuses[1:], member.Status):
		return member, checkStatus(member.Status)
	}
	return member, nil
}
