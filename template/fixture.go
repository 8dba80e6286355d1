package template

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gopkg.in/yaml.v2"

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
	Agent     fixtureAgent                       `yaml:"agent"`
	Configs   map[string]yaml.MapSlice           `yaml:"configs"`
	Versions  map[string]int64                   `yaml:"versions"`
	Groups    map[string]fixtureGroup            `yaml:"groups"`
	GroupSets map[string]map[string]fixtureGroup `yaml:"group_sets"`
	Elections map[string]fixtureLeader           `yaml:"elections"`
}

type fixtureAgent struct {
	ID   string `yaml:"id"`
	Host string `yaml:"host"`
}

type fixtureLeader struct {
	ID   string `yaml:"id"`
	Term int64  `yaml:"term"`
	Mine bool   `yaml:"mine"`
}

type fixtureGroup struct {
	OnEmpty string          `yaml:"on_empty"`
	Members []fixtureMember `yaml:"members"`
}

type fixtureMember struct {
	ID     string            `yaml:"id"`
	Node   string            `yaml:"node"`
	Znode  string            `yaml:"znode"`
	Held   bool              `yaml:"held"`
	Name   string            `yaml:"name"`
	Host   string            `yaml:"host"`
	Port   int               `yaml:"port"`
	Ports  map[string]int    `yaml:"ports"`
	Weight *int              `yaml:"weight"`
	Status string            `yaml:"status"`
	Labels map[string]string `yaml:"labels"`
	Czxid  int64             `yaml:"czxid"`
}

// LoadFixture returns the view that a YAML (or JSON) text describes, for
// tests of templates and for rendering without ZooKeeper. Unknown fields are
// errors.
func LoadFixture(data []byte) (view.View, error) {
	var f fixture
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return view.View{}, fmt.Errorf("read fixture: %w", err)
	}
	v := view.View{Agent: view.Agent{ID: f.Agent.ID, Host: f.Agent.Host}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.Configs)) {
		t, err := fixtureTree(name, f.Configs[name], f.Versions[name])
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
		v = v.With(&view.Leader{Name: name, Path: "/" + name, ID: l.ID, Term: l.Term, Mine: l.Mine})
	}
	if err := errors.Join(errs...); err != nil {
		return view.View{}, fmt.Errorf("read fixture: %w", err)
	}
	return v, nil
}

// fixtureTree flattens nested maps into keys.
func fixtureTree(name string, content yaml.MapSlice, version int64) (*view.Tree, error) {
	keys := map[string]string{}
	if err := flatten(keys, "", content); err != nil {
		return nil, fmt.Errorf("config %q: %w", name, err)
	}
	t := view.TreeOf(name, "/"+name, keys)
	t.Generation = cmp.Or(version, 1)
	return t, nil
}

func flatten(keys map[string]string, prefix string, m yaml.MapSlice) error {
	for _, item := range m {
		path := prefix + fmt.Sprint(item.Key)
		switch v := item.Value.(type) {
		case yaml.MapSlice:
			if err := flatten(keys, path+"/", v); err != nil {
				return err
			}
			continue
		case []any:
			return fmt.Errorf("key %q is a list: values are texts", path)
		case nil:
			keys[path] = ""
			continue
		default:
			keys[path] = fmt.Sprint(v)
		}
	}
	return nil
}

func (f fixtureGroup) group(name string) (*view.Group, error) {
	g := &view.Group{Name: name, Path: "/" + name, OnEmpty: f.OnEmpty}
	for i, m := range f.Members {
		if m.Host == "" {
			return g, fmt.Errorf("group %q: member %d has no host", name, i+1)
		}
		if m.Port < 0 || m.Port > 65535 {
			return g, fmt.Errorf("group %q: member %d: port %d is not in 0..65535", name, i+1, m.Port)
		}
		weight := 1
		if m.Weight != nil {
			weight = *m.Weight
		}
		znode := cmp.Or(m.Znode, m.ID, fmt.Sprintf("member_%010d", i))
		member := view.Member{
			ID: cmp.Or(m.ID, znode), Node: cmp.Or(m.Node, m.Host), Znode: znode, Name: cmp.Or(m.Name, znode), Host: m.Host,
			Port: m.Port, Ports: m.Ports, Weight: weight, Status: cmp.Or(m.Status, view.StatusUp), Held: m.Held, Czxid: m.Czxid, Mzxid: m.Czxid,
		}
		member.SetLabels(m.Labels)
		g.Members = append(g.Members, member)
	}
	slices.SortFunc(g.Members, view.CompareMembers)
	return g, nil
}

// exampleFixture is the view of the examples in the catalog.
//
//go:embed example.yaml
var exampleFixture []byte

// ExampleView returns the view that the examples of [Functions] use.
func ExampleView() view.View {
	v, err := LoadFixture(exampleFixture)
	if err != nil {
		panic(err) // The fixture is a part of the program.
	}
	return v
}
