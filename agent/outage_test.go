package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// ownBed is a bed with a ZooKeeper of its own, for tests that disturb it.
func ownBed(t *testing.T) (*bed, *zktest.Server) {
	t.Helper()
	server := zktest.Start(t)
	b := &bed{t: t, dir: t.TempDir(), addr: server.Addr()}
	b.s = b.dial()
	return b, server
}

func TestOutage_RestartFreezeAndWipe(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b, server := ownBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.ZooKeeper.Timeout = 2 * time.Second
	f := b.file("web.conf", `{{ key "web/port" }}`)
	f.Reload = &apply.ReloadConfig{Command: script("cat %s >> %s; echo >> %s", b.path("web.conf"), b.path("log"), b.path("log"))}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("web.conf"), "80")

	server.Stop(t)
	server.Start(t)
	b.set("/config/web/port", "81")
	fileIs(t, b.path("web.conf"), "81")

	server.Freeze(t)
	before := a.Status().ZooKeeper.Expirations
	eventually(t, "the connection to be given up", func() bool { return a.Status().ZooKeeper.State != "connected" })
	server.Resume(t)
	b.set("/config/web/port", "82")
	fileIs(t, b.path("web.conf"), "82")

	// An empty ZooKeeper: the file stays, and a tree that is made anew is
	// followed although its zxids are smaller.
	server.Stop(t)
	server.Wipe(t)
	server.Start(t)
	eventually(t, "the session to expire", func() bool { return a.Status().ZooKeeper.Expirations > before })
	fileIs(t, b.path("web.conf"), "82")
	b.s.Close()
	b.s = b.dial()
	b.tree(map[string]string{"port": "83"})
	fileIs(t, b.path("web.conf"), "83")
	eventually(t, "the program to have read every version", func() bool {
		return slices.Equal(slices.Compact(strings.Fields(read(t, b.path("log")))), []string{"80", "81", "82", "83"})
	})
}

func TestStart_WithoutZooKeeper(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b, server := ownBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("kept.conf", `{{ key "web/port" }}`), b.file("lost.conf", `{{ key "web/port" }}`)}
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("lost.conf"), "80")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	if err := os.WriteFile(b.path("kept.conf"), []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.path("lost.conf")); err != nil {
		t.Fatal(err)
	}
	a = b.start(c)
	a.ready()
	fileIs(t, b.path("lost.conf"), "80")
	if got := read(t, b.path("kept.conf")); got != "newer" {
		t.Errorf("a file was overwritten from the cache: %q", got)
	}
	a.condition(condition.LastKnownGood, "", true)
	server.Start(t)
	a.condition(condition.LastKnownGood, "", false)
	fileIs(t, b.path("kept.conf"), "80")
}

func TestStart_WithoutAnything(t *testing.T) {
	t.Parallel()
	b := &bed{t: t, dir: t.TempDir(), addr: "127.0.0.1:1"}
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	a := b.start(c)
	a.loop.do(t.Context(), func() { a.loop.startLimit = time.Millisecond })
	a.ready()
	a.condition(condition.WaitingForSources, "", true)
	if exists(b.path("web.conf")) {
		t.Error("a file was rendered from nothing")
	}
}

func TestApply_DiskFull(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	one, two := b.file("one.conf", `one {{ key "web/port" }}`), b.file("two.conf", `two {{ key "web/port" }}`)
	one.Templates = append(one.Templates, two.Templates...)
	one.Reload = &apply.ReloadConfig{Command: script("echo reload >> %s", b.path("log"))}
	c.Bundles = []apply.Config{one}
	var full atomic.Bool
	a := b.start(c, func(a *Agent) {
		a.engine.FS = &files.FS{Before: func(op, _ string) error {
			if full.Load() && op == "write" {
				return errors.New("no space left on device")
			}
			return nil
		}}
	})
	a.ready()
	full.Store(true)
	b.set("/config/web/port", "81")
	a.condition(condition.TemplateFailed, "one.conf", true)
	fileIs(t, b.path("one.conf"), "one 80")
	fileIs(t, b.path("two.conf"), "two 80")
	// There is space again: the apply is tried again by itself.
	full.Store(false)
	fileIs(t, b.path("two.conf"), "two 81")
	fileIs(t, b.path("one.conf"), "one 81")
	a.condition(condition.TemplateFailed, "one.conf", false)
	fileIs(t, b.path("log"), "reload\nreload\n")
}

func TestStop_HandOverKeepsTheSession(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.OnStop = onStopHandOver
	c.ZooKeeper.Timeout = 30 * time.Second
	c.Elections = []election.Config{{Name: "e", Path: "/elections/e"}}
	c.Hooks = []hook.Config{{
		Name: "h", Leader: "e", OnElected: true, OnDeposed: true,
		Command: script("echo $ZKAGENT_EVENT >> %s", b.path("log")),
	}}
	a := b.start(c)
	fileIs(t, b.path("log"), "elected\n")
	id := a.Status().ZooKeeper.SessionID
	znodes := func() string {
		names, _, err := b.s.Children(t.Context(), "/elections/e")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(names)
	}
	candidates := znodes()
	eventually(t, "the ledger", func() bool {
		data, _, err := b.s.Get(t.Context(), "/elections/e-ledger/h")
		return err == nil && strings.Contains(string(data), `"elected":{"state":"done"`)
	})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a = b.start(c)
	a.ready()
	eventually(t, "the term to go on", func() bool { return a.hooks.Term("e") != 0 })
	if st := a.Status().ZooKeeper; !st.Resumed || st.SessionID != id {
		t.Errorf("got session %x, resumed %v; want %x", st.SessionID, st.Resumed, id)
	}
	if got := znodes(); got != candidates {
		t.Errorf("got candidates %s, want %s", got, candidates)
	}
	if got := read(t, b.path("log")); got != "elected\n" {
		t.Errorf("hooks ran in a term that goes on: %q", got)
	}
	a.Leave()
	if err := <-a.done; err != nil {
		t.Error(err)
	}
	a.done <- nil
	if got := znodes(); got != "[]" {
		t.Errorf("candidates left behind: %s", got)
	}
	fileIs(t, b.path("log"), "elected\ndeposed\n")
}
