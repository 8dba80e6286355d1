package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
)

// hung is an agent of two templates on a disk of which one directory hangs on demand.
type hung struct {
	*Agent

	t      *testing.T
	srv    *memzk.Server
	hangs  chan struct{} // closed: the disk answers again
	cancel context.CancelFunc
	done   chan error
}

// newHung starts an agent inside of a bubble. hangs says which calls hang at first.
func newHung(t *testing.T, dir string, hangs func(op, path string) bool) *hung {
	t.Helper()
	h := &hung{t: t, srv: memzk.New(memzk.Options{TickTime: time.Second}), hangs: make(chan struct{}), done: make(chan error, 1)}
	for path, data := range map[string]string{"/web/a": "1", "/web/ready": ""} {
		if err := h.srv.Create(path, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{
		ID: "a1", Host: "h", OnStop: "leave", StateDir: filepath.Join(dir, "state"),
		ZooKeeper: session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: h.srv.Dial},
		Configs:   []config.Config{{Name: "web", Path: "/web"}},
	}
	for _, name := range []string{"bad", "good"} {
		dest := filepath.Join(dir, name, "dest")
		if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
			t.Fatal(err)
		}
		cfg.Bundles = append(cfg.Bundles, apply.Config{
			Name: name, Reload: &apply.ReloadConfig{Command: argv("true")}, Templates: []apply.FileConfig{{
				Name: name, Contents: `{{ key "web/a" }}`, Destination: func(*template.Each) (string, error) { return dest, nil },
			}},
		})
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Agent = a
	a.engine.FS.Look = func(op, path string) error {
		if hangs(op, path) {
			<-h.hangs
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.cancel = cancel
	go func() { h.done <- a.Run(ctx) }()
	return h
}

// stop ends the agent, and checks that it takes no longer than what the docs promise.
func (h *hung) stop() {
	h.t.Helper()
	began := time.Now()
	h.cancel()
	if err := <-h.done; err != nil {
		h.t.Error(err)
	}
	if took := time.Since(began); took > stopLimit {
		h.t.Errorf("the stop took %v", took)
	}
	close(h.hangs)
	synctest.Wait()
	h.srv.Close()
}

// A disk that hangs holds up one template: the others continue, a condition says so within
// a minute or two, and a stop ends.
func TestAgent_HungDisk(t *testing.T) {
	for _, c := range []struct{ name, op string }{
		{"look", "stat"}, {"open", "open"}, {"read", "read"}, {"directory", "opendir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				var on atomic.Bool
				h := newHung(t, dir, func(op, path string) bool { return on.Load() && op == c.op && strings.Contains(path, "/bad") })
				<-h.Ready()
				bad := filepath.Join(dir, "bad", "dest")
				if err := os.WriteFile(bad, []byte("0"), 0o644); err != nil { // So that a look reads it.
					t.Fatal(err)
				}
				on.Store(true)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				list := h.conds.List()
				if len(list) == 0 || slices.ContainsFunc(list, func(c condition.Condition) bool { return c.Code != condition.FilesStuck.Code }) {
					t.Errorf("open conditions: %+v", list)
				}
				if err := h.srv.Set("/web/a", []byte("2")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if got := read(t, filepath.Join(dir, "good", "dest")); got != "2" {
					t.Errorf("the other template has %q", got)
				}
				h.stop()
			})
		})
	}
}

// A recovery that hangs holds up no start and no other template.
func TestAgent_HungRecovery(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bad"), 0o755); err != nil {
		t.Fatal(err)
	}
	tx := files.Begin(files.TxConfig{Bundle: "bad", StateDir: filepath.Join(dir, "state", "journal"), Durable: true})
	_, err := tx.StageAll([]files.Content{{File: files.File{Destination: filepath.Join(dir, "bad", "dest")}, Data: []byte("0")}})
	if err = errors.Join(err, tx.Swap()); err != nil {
		t.Fatal(err)
	}
	tx.Keep()
	synctest.Test(t, func(t *testing.T) {
		h := newHung(t, dir, func(_, path string) bool { return strings.Contains(path, "/bad") })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := read(t, filepath.Join(dir, "good", "dest")); got != "1" {
			t.Errorf("the other template has %q", got)
		}
		if list := h.conds.List(); len(list) == 0 || list[0].Code != condition.FilesStuck.Code {
			t.Errorf("open conditions: %+v", list)
		}
		h.stop()
	})
}

// Whatever takes the place of a file in use: a condition says so, the agent repairs what
// can be repaired, and uses the next version when the obstacle has gone.
func TestAgent_ObstacleInPlaceOfAFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"directory":      func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o755) },
		"named pipe":     func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"link to itself": func(path string) error { return os.Symlink(path, path) },
		"link to zeros":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"sparse file":    func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 8<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				h := newHung(t, dir, func(string, string) bool { return false })
				<-h.Ready()
				time.Sleep(time.Second)
				bad := filepath.Join(dir, "bad", "dest")
				if err := errors.Join(os.Remove(bad), put(bad)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				list := h.conds.List()
				if len(list) == 0 {
					t.Fatal("all views say ok")
				}
				t.Log(list[0].Name(), list[0].Text)
				if err := errors.Join(os.RemoveAll(bad), h.srv.Set("/web/a", []byte("2"))); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if got := read(t, bad); got != "2" {
					t.Errorf("got %q after the obstacle has gone", got)
				}
				if list := h.conds.List(); len(list) > 0 {
					t.Errorf("still open: %+v", list)
				}
				h.stop()
			})
		})
	}
}

// A state directory that others can write is refused, with the command that corrects it.
func TestNew_ExposedStateDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{ID: "a1", StateDir: dir, ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}}})
	if !errors.Is(err, files.ErrExposed) || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("got %v", err)
	}
}

// The first reload fails, and so does the one after the new file was taken away: each view
// says so from the first failure on, and none says that the new file is in place when it is
// not.
func TestAgent_FirstReloadFails(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"a": "1"})
	c := b.config()
	f := b.file("out", `{{ key "web/a" }}`)
	// Each run but the first waits until the test has looked.
	f.Reload = &apply.ReloadConfig{Command: script("mkdir %[1]s || until rmdir %[2]s; do sleep .01; done; false", b.path("ran"), b.path("looked")), OnFailure: "restore", Retry: 1}
	c.Bundles = []apply.Config{f}
	a := b.start(c)
	says := func(text string, there bool) {
		t.Helper()
		var s show.TemplateStatus
		eventually(t, text, func() bool {
			s = a.Status().Templates[0]
			return strings.Contains(s.PendingText, text) && s.LastReload != nil && exists(b.path("out")) == there
		})
		if s.State != "reload-failed" && s.State != "failed" {
			t.Errorf("%s: the state is %s", text, s.State)
		}
		if err := os.Mkdir(b.path("looked"), 0o700); err != nil {
			t.Error(err)
		}
	}
	says("in place", true)
	says("taken back", false)
	eventually(t, "the retry", func() bool { return !exists(b.path("looked")) })
	if err := os.Mkdir(b.path("looked"), 0o700); err != nil {
		t.Error(err)
	}
	a.condition(condition.ReloadPending, "out", true)
	eventually(t, "the text", func() bool {
		list := a.conds.List()
		i := slices.IndexFunc(list, func(c condition.Condition) bool { return c.Code == condition.ReloadPending.Code })
		return i >= 0 && strings.Contains(list[i].Text, "taken back")
	})
}
