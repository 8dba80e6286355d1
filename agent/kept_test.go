package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
)

// TestApply_EmptyGroupKeeps: that an empty group lets a file be as it is, is
// wished: it is a condition of its own, and nothing has failed.
func TestApply_EmptyGroupKeeps(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	if err := b.s.CreateParents(t.Context(), "/services/web/m"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("web.conf"), []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := b.config()
	c.Groups = []registry.GroupConfig{{Name: "web", Path: "/services/web"}}
	c.Bundles = []apply.Config{b.file("web.conf", `{{ range members "web" }}{{ .Address }}{{ end }}`)}
	a := b.start(c)
	a.ready()
	a.condition(condition.GroupEmpty, "web.conf", true)
	a.condition(condition.TemplateFailed, "web.conf", false)
	st := a.Status()
	if got := st.Templates[0]; got.State != "kept" || !strings.Contains(got.Error, "stays as it is") || !strings.Contains(st.Summary, "1 kept") {
		t.Errorf("got %+v, %s", got, st.Summary)
	}
	fileIs(t, b.path("web.conf"), "as it was")
	b.ephemeral("/services/web/m1", `{"host":"10.0.0.1","port":80}`)
	fileIs(t, b.path("web.conf"), "10.0.0.1:80")
	a.condition(condition.GroupEmpty, "web.conf", false)
}

// TestApply_MissingKeyHolds: a key that is deleted lets the file be as it is, and
// says for which key it waits.
func TestApply_MissingKeyHolds(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `port={{ key "web/port" }}`), b.file("new.conf", `host={{ key "web/host" }}`)}
	for i := range c.Bundles {
		c.Bundles[i].Templates[0].MissingKeyOK = true // It concerns maps only.
	}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("web.conf"), "port=80")
	a.condition(condition.KeyMissing, "new.conf", true)
	if _, err := os.Stat(b.path("new.conf")); !os.IsNotExist(err) {
		t.Errorf("a file was written without its key: %v", err)
	}
	for _, key := range []string{"ready", "port"} {
		b.sure(func() error { return b.s.Delete(t.Context(), "/config/web/"+key, -1) })
	}
	b.tree(map[string]string{"host": "h"})
	fileIs(t, b.path("new.conf"), "host=h")
	a.condition(condition.KeyMissing, "new.conf", false)
	a.condition(condition.KeyMissing, "web.conf", true)
	a.condition(condition.TemplateFailed, "web.conf", false)
	for _, st := range a.Status().Templates {
		if st.Name == "web.conf" && (st.State != "kept" || !strings.Contains(st.Error, `has no key "port"`)) {
			t.Errorf("got %+v", st)
		}
	}
	fileIs(t, b.path("web.conf"), "port=80")
}

// TestApply_CreateDirs: the directories of a destination are made where the
// template says so.
func TestApply_CreateDirs(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("a/b/made.conf", `<<key "web/port">>`), b.file("c/none.conf", "x")}
	f := &c.Bundles[0].Templates[0]
	f.CreateDirs, f.Left, f.Right = true, "<<", ">>"
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("a/b/made.conf"), "80")
	a.condition(condition.TemplateFailed, "c/none.conf", true)
}
