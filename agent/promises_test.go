package agent

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// A hook waits for the file that a check refuses, and runs when it is in place.
func TestHook_WaitsForAFileThatItsCheckRefuses(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	file := b.file("web.conf", `{{ key "web/port" }}`)
	file.Check = &apply.CheckConfig{Command: script(`test ! -e %s`, b.path("refuse")), At: "staged"}
	c.Bundles = []apply.Config{file}
	c.Hooks = []hook.Config{{
		Name: "h", OnChange: []view.Source{source(view.KindConfig, "web")}, Command: script("cat %s >> %s", b.path("web.conf"), b.path("log")),
	}}
	a := b.start(c)
	fileIs(t, b.path("log"), "80")
	b.refuse(true)
	b.set("/config/web/port", "81")
	a.condition(condition.TemplateFailed, "web.conf", true)
	if got := read(t, b.path("log")); got != "80" {
		t.Errorf("the hook ran beside the old file: %q", got)
	}
	b.refuse(false)
	a.RenderAll(t.Context())
	fileIs(t, b.path("log"), "8081")
}

// A hook waits for the file that a missing key keeps as it is.
func TestHook_WaitsForAFileThatAMissingKeyKeeps(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	c.Hooks = []hook.Config{{
		Name: "h", OnChange: []view.Source{source(view.KindConfig, "web")}, Command: script("cat %s >> %s", b.path("web.conf"), b.path("log")),
	}}
	a := b.start(c)
	fileIs(t, b.path("log"), "80")
	if err := b.s.Delete(t.Context(), "/config/web/port", -1); err != nil {
		t.Fatal(err)
	}
	a.condition(condition.KeyMissing, "web.conf", true)
	b.create("/config/web/port", "81")
	fileIs(t, b.path("log"), "8081")
}

// The ledger of a leader-only reload knows the files, not only their sources.
func TestReload_LeaderOnlyReloadsAnEditedTemplate(t *testing.T) {
	testhelp.InTurn(t, 2)
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
	bundle := func(text string) apply.Config {
		f := b.file("web.conf", text)
		f.Reload = &apply.ReloadConfig{Command: script("cat %s >> %s", b.path("web.conf"), b.path("log")), Leader: "e"}
		return f
	}
	c.Bundles = []apply.Config{bundle(`{{ key "web/port" }}`)}
	edited := c
	edited.Bundles = []apply.Config{bundle(`edited {{ key "web/port" }}`)}
	c.Load = func() (Config, error) { return edited, nil }
	a := b.start(c)
	fileIs(t, b.path("log"), "80")
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	fileIs(t, b.path("log"), "80edited 80")
}

// A signal that comes before the first settings are in use loads the settings
// after them: the newest win.
func TestReload_BeforeTheStart(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", "first")}
	edited := c
	edited.Bundles = []apply.Config{b.file("web.conf", "edited")}
	var a *Agent
	early := make(chan bool, 1)
	c.Load = func() (Config, error) {
		_, running := kindConfig.of(a.sup, "web")
		early <- !running
		return edited, nil
	}
	loaded := make(chan error, 1)
	b.start(c, func(x *Agent) {
		a = x
		go func() { loaded <- a.Reload(t.Context()) }()
		time.Sleep(50 * time.Millisecond) // let it come as far as it can
	})
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if <-early {
		t.Error("the settings were loaded before the first ones were in use")
	}
	fileIs(t, b.path("web.conf"), "edited")
}

// A stop waits for the reload that is under way, and refuses any other.
func TestReload_MeetsTheStop(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	loading, ended := make(chan struct{}), atomic.Bool{}
	next := c
	c.Load = func() (Config, error) {
		close(loading)
		time.Sleep(300 * time.Millisecond) // longer than a stop takes
		ended.Store(true)
		return next, nil
	}
	a := b.start(c)
	a.ready()
	loaded := make(chan error, 1)
	go func() { loaded <- a.Reload(t.Context()) }()
	<-loading
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if !ended.Load() {
		t.Error("the agent ended beside a reload of its settings")
	}
	if err := <-loaded; err != nil && !errors.Is(err, errStopping) {
		t.Error(err)
	}
	if err := a.Reload(t.Context()); !errors.Is(err, errStopping) {
		t.Errorf("a reload after the stop: got %v", err)
	}
}

// A leader-only reload with an argument list for each element runs each of them.
func TestReload_LeaderOnlyRunsEachArgumentList(t *testing.T) {
	testhelp.InTurn(t, 2)
	b := newBed(t)
	b.tree(map[string]string{"one": "1", "two": "2"})
	c := b.config()
	c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
	src := source(view.KindConfig, "web")
	f := b.file("each", "x")
	f.ForEach = &src
	f.Templates[0].Destination = func(e *template.Each) (string, error) {
		if e == nil {
			return "", errors.New("no element")
		}
		return b.path(e.Key + ".conf"), nil
	}
	f.Reload = &apply.ReloadConfig{Leader: "e", Command: command.Command{Text: "each", Args: func(v command.Vars) ([]string, error) {
		key := "none"
		if v.Each != nil {
			key = v.Each.Key
		}
		return []string{"/bin/sh", "-c", "echo $1 >> " + b.path("log"), "sh", key}, nil
	}}}
	c.Bundles = []apply.Config{f}
	b.start(c)
	eventually(t, "both reloads", func() bool {
		lines := strings.Fields(read(t, b.path("log")))
		slices.Sort(lines)
		return slices.Equal(lines, []string{"one", "two"})
	})
}

// A file that somebody changed and the agent put back is reloaded again, though
// its content is the one of the ledger.
func TestReload_LeaderOnlyAfterARepair(t *testing.T) {
	testhelp.InTurn(t, 2)
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
	f := b.file("web.conf", `{{ key "web/port" }}`)
	f.Reload = &apply.ReloadConfig{Command: script("cat %s >> %s", b.path("web.conf"), b.path("log")), Leader: "e"}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	fileIs(t, b.path("log"), "80")
	if err := os.WriteFile(b.path("web.conf"), []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.RenderAll(t.Context())
	fileIs(t, b.path("log"), "8080")
	if got := read(t, b.path("web.conf")); got != "80" {
		t.Errorf("the file is %q", got)
	}
}
