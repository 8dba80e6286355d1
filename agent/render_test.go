package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/template"
)

func TestAgent_RendersChecksSwapsAndReloads(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	f := b.file("web.conf", `port {{ key "web/port" }}`)
	f.Check = &apply.CheckConfig{Command: command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
		return []string{"/bin/sh", "-c", "! grep -q bad $1 && grep -q port $2", "check", v.Staged, v.StagedDir + v.Destination}, nil
	}}}
	f.Reload = &apply.ReloadConfig{Command: script("cat %s >> %s; echo >> %s", b.path("web.conf"), b.path("log"), b.path("log"))}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("web.conf"), "port 80")
	fileIs(t, b.path("log"), "port 80\n")

	b.set("/config/web/port", "81")
	fileIs(t, b.path("web.conf"), "port 81")
	fileIs(t, b.path("log"), "port 80\nport 81\n")

	b.set("/config/web/port", "bad")
	a.condition(condition.TemplateFailed, "web.conf", true)
	if got := read(t, b.path("web.conf")); got != "port 81" {
		t.Errorf("a refused file is in use: %q", got)
	}
	b.set("/config/web/port", "82")
	a.condition(condition.TemplateFailed, "web.conf", false)
	fileIs(t, b.path("web.conf"), "port 82")
	fileIs(t, b.path("log"), "port 80\nport 81\nport 82\n")
	if !a.engine.PendingSince("web.conf").IsZero() {
		t.Error("a reload is pending after one that succeeded")
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestAgent_SwappedCheckPutsTheOldFileBack(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	f := b.file("web.conf", `port {{ key "web/port" }}`)
	f.Check = &apply.CheckConfig{At: "swapped", Command: script("! grep -q bad %s || { echo bad port; exit 1; }", b.path("web.conf"))}
	f.Reload = &apply.ReloadConfig{Command: script("cat %s >> %s", b.path("web.conf"), b.path("log"))}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	a.ready()
	b.set("/config/web/port", "bad")
	a.condition(condition.TemplateFailed, "web.conf", true)
	fileIs(t, b.path("web.conf"), "port 80")
	if got := read(t, b.path("log")); got != "port 80" {
		t.Errorf("got reloads %q", got)
	}
	if !a.engine.PendingSince("web.conf").IsZero() {
		t.Error("a reload is pending although no program saw the file")
	}
	st := a.Status()
	if e := st.Templates[0].Error; !strings.Contains(e, "bad port") || st.Templates[0].Stage != "check" {
		t.Errorf("got %q at %q", e, st.Templates[0].Stage)
	}
}

// When the agent reports a condition of a template, the status already shows the state
// that the condition is about. The same holds when it reports the end of the condition.
func TestAgent_StatusIsThereBeforeTheCondition(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	f := b.file("web.conf", `port {{ key "web/port" }}`)
	f.Check = &apply.CheckConfig{At: "swapped", Command: script("! grep -q bad %s", b.path("web.conf"))}
	c.Bundles = []apply.Config{f}
	seen := make(chan string, 4)
	a := b.start(c, func(a *Agent) {
		announce := a.conds.Changed
		a.conds.Changed = func(c condition.Condition, isOpen bool) {
			announce(c, isOpen)
			if c.Code == "template-failed" {
				st := a.Status().Templates[0]
				seen <- fmt.Sprint(isOpen, " ", st.State, " ", st.Stage, " ", st.Error != "")
			}
		}
	})
	a.ready()
	for _, step := range [][2]string{{"bad", "true failed check true"}, {"81", "false ok  false"}} {
		b.set("/config/web/port", step[0])
		select {
		case got := <-seen:
			if got != step[1] {
				t.Errorf("port %s: got %q, want %q", step[0], got, step[1])
			}
		case <-time.After(patience): //nolint:forbidigo // once.
			t.Fatal("the condition does not change")
		}
	}
}

func TestAgent_FailedReloadRestoresAndReloadsAgain(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	one, two := b.file("one.conf", `one {{ key "web/port" }}`), b.file("two.conf", `two {{ key "web/port" }}`)
	reload := &apply.ReloadConfig{Command: script("cat %s %s >> %s; echo >> %s; ! grep -q bad %s", b.path("one.conf"), b.path("two.conf"), b.path("log"), b.path("log"), b.path("one.conf"))}
	one.Reload, two.Reload = reload, reload
	c.Bundles = []apply.Config{one, two}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("log"), "one 80two 80\n")
	b.set("/config/web/port", "bad")
	a.condition(condition.TemplateFailed, "one.conf", true)
	a.condition(condition.TemplateFailed, "two.conf", true)
	fileIs(t, b.path("one.conf"), "one 80")
	fileIs(t, b.path("two.conf"), "two 80")
	fileIs(t, b.path("log"), "one 80two 80\none badtwo bad\none 80two 80\n")
	if !a.engine.PendingSince("one.conf").IsZero() || !a.engine.PendingSince("two.conf").IsZero() {
		t.Error("a reload is pending although the old files were reloaded")
	}
	b.set("/config/web/port", "81")
	fileIs(t, b.path("log"), "one 80two 80\none badtwo bad\none 80two 80\none 81two 81\n")
}

func TestAgent_FailedReloadThatKeepsIsPendingAndMadeGood(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	f := b.file("web.conf", `port {{ key "web/port" }}`)
	f.Reload = &apply.ReloadConfig{OnFailure: "keep", Command: script("test -e %s", b.path("up"))}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	a.condition(condition.ReloadPending, "web.conf", true)
	fileIs(t, b.path("web.conf"), "port 80")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	// The next process runs it although no file changes.
	f.Reload = &apply.ReloadConfig{OnFailure: "keep", Command: script("echo reloaded >> %s", b.path("log"))}
	c.Bundles = []apply.Config{f}
	a = b.start(c)
	a.ready()
	fileIs(t, b.path("log"), "reloaded\n")
	a.condition(condition.ReloadPending, "web.conf", false)
	if !a.engine.PendingSince("web.conf").IsZero() {
		t.Error("still pending")
	}
}

func TestAgent_UnchangedViewDoesNothing(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80", "other": "x"})
	c := b.config()
	f := b.file("web.conf", `port {{ key "web/port" }}`)
	f.Reload = &apply.ReloadConfig{Command: script("echo reload >> %s", b.path("log"))}
	g := b.file("other.conf", `{{ key "web/other" }}`)
	c.Bundles = []apply.Config{f, g}
	a := b.start(c)
	a.ready()
	before := renders(t, a.Agent, "web.conf")
	b.set("/config/web/other", "y")
	fileIs(t, b.path("other.conf"), "y")
	if got := renders(t, a.Agent, "web.conf"); got != before {
		t.Errorf("the template was executed %v times for a key that it does not use", got-before)
	}
	b.set("/config/web/port", "80") // a new zxid, the same bytes.
	b.set("/config/web/other", "z")
	fileIs(t, b.path("other.conf"), "z")
	if got := read(t, b.path("log")); got != "reload\n" {
		t.Errorf("got %q", got)
	}
}

// renders is how often a template was executed.
func renders(t *testing.T, a *Agent, name string) float64 {
	t.Helper()
	families, err := a.metrics.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, f := range families {
		if f.GetName() != "zkagent_render_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "template" && l.GetValue() == name {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func TestAgent_DriftIsRepairedOrReported(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	repair, report := b.file("repair.conf", `{{ key "web/port" }}`), b.file("report.conf", `{{ key "web/port" }}`)
	report.Templates[0].Drift = "report"
	c.Bundles = []apply.Config{repair, report}
	a := b.start(c)
	a.ready()
	for _, n := range []string{"repair.conf", "report.conf"} {
		if err := os.WriteFile(b.path(n), []byte("by hand"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.loop.do(t.Context(), func() { a.loop.drift = a.loop.began })
	fileIs(t, b.path("repair.conf"), "80")
	a.condition(condition.Drift, b.path("report.conf"), true)
	if got := read(t, b.path("report.conf")); got != "by hand" {
		t.Errorf("got %q", got)
	}
	a.RenderAll(t.Context())
	b.set("/config/web/port", "81")
	fileIs(t, b.path("report.conf"), "81")
}

func TestAgent_ForEachWritesAndRemoves(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"a": "1", "b": "2", "c": "3"})
	c := b.config()
	src := source("config", "web")
	c.Bundles = []apply.Config{{Name: "each", ForEach: &src, Templates: []apply.FileConfig{{
		Name: "each", Contents: `{{ .Key }}={{ .Value }}`,
		Destination: func(e *template.Each) (string, error) {
			if e == nil {
				return "", errors.New("no element")
			}
			return b.path("each-" + e.Key), nil
		},
	}}}}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("each-a"), "a=1")
	fileIs(t, b.path("each-c"), "c=3")
	if err := os.WriteFile(b.path("each-c"), []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"b", "c"} {
		if err := b.s.Delete(t.Context(), "/config/web/"+k, -1); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "each-b to go", func() bool { return !exists(b.path("each-b")) })
	if got := read(t, b.path("each-c")); got != "by hand" && got != "" {
		t.Errorf("got %q", got)
	}
	fileIs(t, b.path("each-a"), "a=1")
}

// The status says when the files were written without a look at their disk, which may hang:
// also after a start that changes nothing.
func TestStatus_LooksAtNoFile(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	a := b.start(c)
	a.ready()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(b.path("web.conf"), old, old); err != nil {
		t.Fatal(err)
	}
	a = b.start(c)
	a.ready()
	eventually(t, "the first apply", func() bool { return !a.Status().Templates[0].LastApply.IsZero() })
	if err := os.Remove(b.path("web.conf")); err != nil {
		t.Fatal(err)
	}
	if got := a.Status().Templates[0].LastChange; !got.Equal(old) {
		t.Errorf("written at %s, want %s", got, old)
	}
}
