package apply

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/zkagent/zkagent/view"
)

// A bundle that a change concerns reads what changed, however it names it; and a
// change of another key is not looked at by a bundle that names its keys.
func TestBundle_Reads(t *testing.T) {
	t.Parallel()
	web, db := view.Source{Kind: view.KindConfig, Name: "web"}, view.Source{Kind: view.KindConfig, Name: "db"}
	api := view.Source{Kind: view.KindGroup, Name: "api"}
	declared := []view.Source{web, db, api}
	var bundles []*Bundle
	for i, text := range []string{
		`{{ key "web/k1" }}`, `{{ key "web/k1" }}{{ keyOrDefault "web/k2" "x" }}`, `{{ tree "web" }}`, `{{ ls "web/d" }}{{ key "web/k1" }}`,
		`{{ version "web" }}{{ key "web/k3" }}`, `{{ key (printf "web/%s" "k4") }}`, `{{ key "db/k1" }}`, `{{ members "api" }}{{ key "web/d/k5" }}`,
		`{{ $k := "web/k1" }}{{ key $k }}`, `{{ "web/k6" | key }}`, `text`,
	} {
		bundles = append(bundles, Parse(Config{Name: fmt.Sprint(i), Templates: []FileConfig{{Name: "t", Contents: text}}}, declared))
	}
	bundles = append(bundles, Parse(Config{Name: "each", ForEach: &web, Templates: []FileConfig{{Name: "t", Contents: `{{ key "web/k1" }}`}}}, declared))
	r := rand.New(rand.NewPCG(3, 4))
	v := view.View{}
	skipped := 0
	for range 600 {
		u := randomUpdate(r, v)
		next, c := v.With(u), ChangeOf(v.Get(u.Source()), u)
		for _, b := range bundles {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
			reads := b.Reads(c)
			if b.Concerns(v, next) && !reads {
				t.Fatalf("bundle %s does not see a change of %v %v", b.Config.Name, c.source, c.keys)
			}
			if !reads {
				skipped++
			}
		}
		v = next
	}
	if skipped < 600 {
		t.Errorf("%d of %d comparisons were left out", skipped, 600*len(bundles))
	}
}

func randomUpdate(r *rand.Rand, v view.View) view.Update {
	if r.IntN(10) == 0 {
		return &view.Group{Name: "api", Members: []view.Member{{Host: "h", Port: 1 + r.IntN(3)}}}
	}
	name := []string{"web", "db"}[r.IntN(2)]
	tree, ok := v.Tree(name)
	if !ok {
		tree = view.NewTree(view.Tree{Name: name, Path: "/" + name}, nil)
	}
	e := tree.Keys().Edit()
	n := 1 + r.IntN(2)
	if r.IntN(50) == 0 {
		n = 2 * maxChanged
	}
	for i := range n {
		path := fmt.Sprintf("k%d", r.IntN(8))
		if i > 1 {
			path = fmt.Sprintf("m%d", i)
		}
		if r.IntN(3) == 0 {
			path = "d/" + path
		}
		if r.IntN(4) == 0 {
			e.Delete(path)
		} else {
			e.Set(path, view.Key{Value: []byte(fmt.Sprint(r.IntN(4)))})
		}
	}
	next := *tree
	next.Generation += int64(r.IntN(2))
	return view.NewTree(next, e.Done())
}
