package lastgood

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/zkagent/zkagent/view"
)

func TestLastGood_RoundTripAndDamage(t *testing.T) {
	state := t.TempDir()
	dir := directory(state)
	if g, err := Load(state); g != nil || err != nil {
		t.Fatalf("got %v, %v from an empty directory", g, err)
	}
	for i := range 7 {
		tree := view.TreeOf("web", "/config/web", map[string]string{"n": strconv.Itoa(i), "bin": "\xff\x00"})
		group := &view.Group{Name: "api", Path: "/api", Members: []view.Member{{Node: "a", Host: "10.0.0.1", Port: 80}}}
		v := view.View{}.With(tree).With(group).With(&view.Leader{Name: "l", ID: "me", Mine: true})
		if err := Save(state, Of(v, map[string]string{"/f": "sum"})); err != nil {
			t.Fatal(err)
		}
	}
	files := Files(state)
	if len(files) != viewsKept {
		t.Fatalf("got %d files, want %d", len(files), viewsKept)
	}
	newest := func() string {
		t.Helper()
		g, err := Load(state)
		if err != nil || g == nil {
			t.Fatalf("got %v, %v", g, err)
		}
		v := view.View{}
		for _, u := range g.Updates() {
			v = v.With(u)
		}
		if _, ok := v.Leader("l"); ok {
			t.Error("leadership was kept")
		}
		if x, ok := v.Group("api"); !ok || len(x.Members) != 1 || x.Members[0].Port != 80 || g.Files["/f"] != "sum" {
			t.Errorf("got group %+v", x)
		}
		tree, _ := v.Tree("web")
		if k, _ := tree.Get("bin"); string(k.Value) != "\xff\x00" {
			t.Errorf("got %q", k.Value)
		}
		k, _ := tree.Get("n")
		return string(k.Value)
	}
	if got := newest(); got != "6" {
		t.Errorf("got %s, want 6", got)
	}
	// A damaged newest one is passed over.
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-5] ^= 1
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := newest(); got != "5" {
		t.Errorf("got %s, want 5", got)
	}
	for _, f := range Files(state) {
		if err := os.Truncate(f, 20); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := Load(state); g != nil || err == nil {
		t.Errorf("got %v, %v from damaged files only", g, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "view-000000007")); err != nil {
		t.Error(err)
	}
}
