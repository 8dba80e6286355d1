package blame

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// blamedOf executes a template with its sources.
func blamedOf(t *testing.T, source, missing string, v view.View) *apply.Blamed {
	t.Helper()
	tmpl, err := template.Parse(template.Config{Name: "web", Source: source})
	if err != nil {
		t.Fatal(err)
	}
	b, err := tmpl.Blame(t.Context(), &v, template.BlameOptions{Missing: missing})
	if err != nil {
		t.Fatal(err)
	}
	return &apply.Blamed{Blame: b, Destination: "/etc/web", Template: "web"}
}

// versioned is a view with n keys of a versioned tree.
func versioned(n int) view.View {
	keys := map[string]string{}
	for i := range n {
		keys[fmt.Sprintf("k%04d", i)] = fmt.Sprint("secret", i)
	}
	tree := view.TreeOf("web", "/web", keys)
	meta := *tree
	meta.Layout, meta.Generation = config.LayoutVersioned, 7
	return view.View{}.With(view.NewTree(meta, tree.Keys()))
}

// A report is bounded, and says so: its lines, the keys that are looked up, and the
// values that have a text.
func TestNew_Bounds(t *testing.T) {
	t.Parallel()
	v := versioned(maxKeys + 100)
	b := blamedOf(t, fmt.Sprintf("{{ range loop %d }}x\n{{ end }}", MaxLines+5), "", v)
	f := New(t.Context(), v, b, Query{}, nil)
	if len(f.Lines) != MaxLines || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "more lines") {
		t.Errorf("%d lines, %v", len(f.Lines), f.Notes)
	}
	if f = New(t.Context(), v, b, Query{From: MaxLines + 4}, nil); len(f.Lines) != 2 || len(f.Notes) != 0 || f.Lines[0].Number != MaxLines+4 {
		t.Errorf("%d lines, %v", len(f.Lines), f.Notes)
	}
	asked := 0
	origins := func(_ context.Context, _ *view.Tree, keys []string) (map[string]config.Origin, error) {
		asked += len(keys)
		found := map[string]config.Origin{}
		for _, k := range keys {
			found[k] = config.Origin{Version: config.Version{Number: 3, Author: "ann", Message: "why", Time: time.Now()}}
		}
		return found, nil
	}
	all := blamedOf(t, "{{ range tree \"web\" }}{{ .Value }}\n{{ end }}", "", v)
	f = New(t.Context(), v, all, Query{}, origins)
	if asked != maxKeys || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "more keys") {
		t.Errorf("%d keys were looked up, %v", asked, f.Notes)
	}
	if first := f.Values[f.Lines[0].Values[0]].Words(); !strings.HasPrefix(first, "config.web/k0000: version 3, by ann, on ") || !strings.HasSuffix(first, `"why"`) {
		t.Errorf("got %s", first)
	}
	// What cannot be found out is said.
	f = New(t.Context(), v, all, Query{To: 3}, func(context.Context, *view.Tree, []string) (map[string]config.Origin, error) {
		return nil, errors.New("no rights")
	})
	if len(f.Lines) != 3 || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "no rights") {
		t.Errorf("got %d lines, %v", len(f.Lines), f.Notes)
	}
}

// The values that have a text which is missing are named, never shown, and at most
// maxFound of them.
func TestMissing_Bounds(t *testing.T) {
	t.Parallel()
	v := versioned(maxFound + 30)
	m := New(t.Context(), v, blamedOf(t, "{{ if lt (len (tree \"web\")) 2 }}{{ range tree \"web\" }}{{ .Value }}{{ end }}{{ end }}", "secret", v), Query{Missing: "secret"}, nil).Missing
	if len(m.Found) != maxFound || len(m.Lines) != 0 {
		t.Fatalf("got %d found, %v", len(m.Found), m.Lines)
	}
	for _, found := range m.Found {
		if strings.Contains(found.Value+found.Note, "secret") {
			t.Errorf("a value is shown: %+v", found)
		}
	}
	g := &view.Group{Name: "api"}
	for i := range maxFound + 30 {
		g.Members = append(g.Members, view.Member{Znode: fmt.Sprint("m", i), Host: "10.0.0.9", Port: i, Status: view.StatusDraining})
	}
	members := view.View{}.With(g)
	m = New(t.Context(), members, blamedOf(t, "{{ range members \"api\" }}{{ .Host }}{{ else }}none{{ end }}", "10.0.0.9", members), Query{Missing: "10.0.0.9"}, nil).Missing
	if len(m.Found) != maxFound || !strings.Contains(m.Found[0].Note, "is draining") {
		t.Errorf("got %d found: %+v", len(m.Found), m.Found[0])
	}
	many := blamedOf(t, strings.Repeat("secret\n", maxFound+30), "secret", v)
	if m = New(t.Context(), v, many, Query{Missing: "secret"}, nil).Missing; len(m.Lines) != maxFound {
		t.Errorf("got %d lines", len(m.Lines))
	}
}
