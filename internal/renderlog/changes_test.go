package renderlog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

// What changed is said by source: keys and bytes of a config, members of a group. A
// source that did not change is not named.
func TestChanges(t *testing.T) {
	t.Parallel()
	member := func(n, weight int) view.Member {
		return view.Member{Znode: fmt.Sprint("m", n), Host: fmt.Sprintf("10.0.0.%d", n), Port: 80, Weight: weight}
	}
	tree := func(keys map[string]string, version int64) *view.Tree {
		tree := view.TreeOf("web", "/web", keys)
		meta := *tree
		meta.Generation = version
		return view.NewTree(meta, tree.Keys())
	}
	sources := []view.Source{{Kind: view.KindConfig, Name: "web"}, {Kind: view.KindGroup, Name: "api"}, {Kind: view.KindElection, Name: "night"}}
	empty := view.View{}
	old := empty.With(tree(map[string]string{"a": "12345", "b": "1", "c": "1"}, 1)).
		With(&view.Group{Name: "api", Members: []view.Member{member(1, 1), member(2, 1), member(3, 1)}}).With(&view.Leader{Name: "night", ID: "x"})
	now := old.With(tree(map[string]string{"a": "1", "c": "1", "d": "22"}, 2)).
		With(&view.Group{Name: "api", Members: []view.Member{member(2, 5), member(3, 1), member(4, 1)}}).With(&view.Leader{Name: "night", ID: "y"})
	for _, c := range []struct {
		name     string
		old, now view.View
		want     []string
	}{
		{"first", empty, old, []string{"config.web: 3 keys at " + versionOf(old), "election.night", "group.api: 3 members"}},
		{"changed", old, now, []string{
			"config.web: " + versionOf(old) + " -> " + versionOf(now) + ", 3 keys, -3 bytes", "election.night",
			"group.api: 3 members, -10.0.0.1:80 ~10.0.0.2:80 +10.0.0.4:80",
		}},
		{"unchanged", now, now.With(tree(map[string]string{"a": "1", "c": "1", "d": "22"}, 2)), nil},
		{"one alone", old, old.With(&view.Leader{Name: "night", ID: "y"}), []string{"election.night"}},
	} {
		if got := Changes(&c.old, &c.now, sources); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	// Many members are counted, and ten are named.
	g := &view.Group{Name: "api"}
	for i := range 200 {
		g.Members = append(g.Members, member(i, 2))
	}
	many := now.With(g)
	got := Changes(&now, &many, sources)
	if len(got) != 1 || len(got[0]) > 200 || got[0][:22] != "group.api: 200 members" {
		t.Errorf("got %q", got)
	}
}

func versionOf(v view.View) string {
	t, _ := v.Tree("web")
	return t.Version()
}

// Members that come, go, change and move to another address are named as by looking each
// up by its znode.
func TestChanges_MembersAsByZnode(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	group := func() *view.Group {
		g := &view.Group{Name: "api"}
		for z := range 12 {
			if rng.IntN(4) > 0 {
				g.Members = append(g.Members, view.Member{Znode: fmt.Sprint("m", z), Host: fmt.Sprint("h", (z+rng.IntN(2))%12), Port: 80, Weight: rng.IntN(2)})
			}
		}
		slices.SortFunc(g.Members, view.CompareMembers)
		return g
	}
	byZnode := func(g *view.Group) map[string]view.Member {
		of := map[string]view.Member{}
		for _, m := range g.Members {
			of[m.Znode] = m
		}
		return of
	}
	sources := []view.Source{{Kind: view.KindGroup, Name: "api"}}
	for range 2000 {
		a, b := group(), group()
		if a.Equal(b) {
			continue
		}
		was, is := byZnode(a), byZnode(b)
		var want []string
		for _, m := range a.Members {
			if _, ok := is[m.Znode]; !ok {
				want = append(want, "-"+m.Address())
			}
		}
		for _, m := range b.Members {
			switch o, ok := was[m.Znode]; {
			case !ok:
				want = append(want, "+"+m.Address())
			case !o.Equal(m):
				want = append(want, "~"+m.Address())
			}
		}
		old, now := view.View{}.With(a), view.View{}.With(b)
		text := strings.Join(append([]string{""}, want[:min(len(want), 10)]...), " ")
		if got := Changes(&old, &now, sources); got[0] != "group.api: "+term.Count(len(want), "member")+","+text {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// A large group costs one walk. Looking up each member in a list of 100,000 would take
// minutes.
func TestChanges_LargeGroup(t *testing.T) {
	t.Parallel()
	group := func(from int) *view.Group {
		g := &view.Group{Name: "api"}
		for i := range 100_000 {
			g.Members = append(g.Members, view.Member{Znode: fmt.Sprintf("member-%09d", from+i), Host: fmt.Sprintf("host-%09d", from+i)})
		}
		return g
	}
	old, now := view.View{}.With(group(0)), view.View{}.With(group(1))
	start := time.Now()
	for range 10 {
		got := Changes(&old, &now, []view.Source{{Kind: view.KindGroup, Name: "api"}})
		if took := time.Since(start); len(got) != 1 || !strings.HasPrefix(got[0], "group.api: 2 members, -host-000000000 +") || took > time.Minute {
			t.Fatalf("got %q after %s", got, took)
		}
	}
}
