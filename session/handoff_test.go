package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

func handoffConfig(srv *memzk.Server, dir string) Config {
	cfg := memConfig(srv)
	cfg.StateDir = dir
	cfg.host = func() host { return host{"machine", "boot"} }
	return cfg
}

// owner runs a manager whose session owns /e, and ends it as told.
func owner(t *testing.T, cfg Config, end func(*Manager)) (id int64) {
	t.Helper()
	m, stop := manage(t, cfg)
	s := mustSession(t, m)
	if _, _, err := s.Create(t.Context(), "/e", nil, Ephemeral); err != nil && !errors.Is(err, ErrNodeExists) {
		t.Fatal(err)
	}
	end(m)
	stop()
	return s.ID()
}

func TestHandoff_SessionOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		id := owner(t, cfg, func(m *Manager) {
			m.SetNote(json.RawMessage(`{"commands":[1]}`))
			m.HandOver()
		})
		for range 50 {
			time.Sleep(2 * time.Second)
			m, stop := manage(t, cfg)
			start := time.Now()
			s := mustSession(t, m)
			if s.ID() != id || !s.Resumed() {
				t.Fatalf("got session %x resumed %v, want %x", s.ID(), s.Resumed(), id)
			}
			var note struct{ Commands []int }
			if err := json.Unmarshal(s.Note(), &note); err != nil || len(note.Commands) != 1 {
				t.Errorf("note %s: %v", s.Note(), err)
			}
			if lease := s.Lease(); lease.Sub(start) > s.Timeout()*2/3+time.Millisecond {
				t.Errorf("lease of %s at the start", lease.Sub(start))
			}
			if own, err := s.Ephemerals(t.Context(), "/"); err != nil || len(own) != 1 {
				t.Errorf("owns %v, %v", own, err)
			}
			m.SetNote(s.Note())
			m.HandOver()
			stop()
		}
		if !srv.Exists("/e") {
			t.Error("ephemeral is gone")
		}
		// A clean leave ends it.
		owner(t, cfg, func(*Manager) {})
		if srv.Exists("/e") {
			t.Error("ephemeral outlived the session")
		}
		if _, err := os.Stat(filepath.Join(dir, stateName)); !os.IsNotExist(err) {
			t.Errorf("state file left: %v", err)
		}
	})
}

// A crash is a hand-over: the file was written when the session began.
func TestHandoff_Crash(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		var before []byte
		id := owner(t, cfg, func(m *Manager) {
			before, _ = os.ReadFile(filepath.Join(dir, stateName))
			m.HandOver()
		})
		if err := os.WriteFile(filepath.Join(dir, stateName), before, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := owner(t, cfg, (*Manager).HandOver); got != id {
			t.Errorf("got session %x, want %x", got, id)
		}
	})
}

func TestHandoff_NotTakenOver(t *testing.T) {
	cases := map[string]struct {
		change func(t *testing.T, file string, cfg *Config)
		says   string
	}{
		"other machine": {func(_ *testing.T, _ string, c *Config) { c.host = func() host { return host{"clone", "boot"} } }, "another machine"},
		"other chroot":  {func(_ *testing.T, _ string, c *Config) { c.Chroot = "/zookeeper" }, "another chroot"},
		"other servers": {func(_ *testing.T, _ string, c *Config) { c.Servers = []string{"b:2181"} }, "another ensemble"},
		"world-readable": {func(t *testing.T, f string, _ *Config) {
			if err := os.Chmod(f, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "0600"},
		"corrupt": {func(t *testing.T, f string, _ *Config) { write(t, f, `{"version":1,"session_id":`) }, "session file"},
		"empty":   {func(t *testing.T, f string, _ *Config) { write(t, f, "") }, "session file"},
		"no session": {func(t *testing.T, f string, _ *Config) {
			write(t, f, `{"version":1,"session_id":"0","password":"","last_zxid":"0"}`)
		}, "names no session"},
		"wrong password": {func(t *testing.T, f string, _ *Config) {
			var v saved
			b, _ := os.ReadFile(f)
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatal(err)
			}
			v.Password[0] ^= 1
			b, _ = json.Marshal(v)
			write(t, f, string(b))
		}, ""},
		"link": {func(t *testing.T, f string, _ *Config) {
			if err := os.Rename(f, f+".real"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(f+".real", f); err != nil {
				t.Fatal(err)
			}
		}, "session file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				cfg := handoffConfig(srv, dir)
				id := owner(t, cfg, (*Manager).HandOver)
				c.change(t, filepath.Join(dir, stateName), &cfg)
				m, stop := manage(t, cfg)
				defer stop()
				s := mustSession(t, m)
				if s.ID() == id || s.Resumed() {
					t.Error("taken over")
				}
				if got := m.Status().LastError; !strings.Contains(got, c.says) {
					t.Errorf("last error %q, want %q in it", got, c.says)
				}
				if srv.Requests()["createSession"] > 10 {
					t.Error("loop")
				}
				info, err := os.Lstat(filepath.Join(dir, stateName))
				if err != nil || info.Mode() != 0o600 {
					t.Errorf("new file: %v %v", info, err)
				}
			})
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHandoff_AfterARebootOnlyToDelete(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		id := owner(t, cfg, (*Manager).HandOver)
		cfg.host = func() host { return host{"machine", "next boot"} }
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		if s.ID() == id || s.Resumed() {
			t.Error("taken over")
		}
		if srv.Exists("/e") {
			t.Error("what the former boot owned is still there")
		}
	})
}

func TestHandoff_SessionIsGone(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		id := owner(t, cfg, (*Manager).HandOver)
		time.Sleep(time.Minute)
		m, stop := manage(t, cfg)
		defer stop()
		if s := mustSession(t, m); s.ID() == id || s.Resumed() {
			t.Error("taken over")
		}
		if got := m.Status().Expirations; got != 0 {
			t.Errorf("got %d expirations, want 0", got)
		}
	})
}

func TestHandoff_OneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		m, stop := manage(t, cfg)
		defer stop()
		mustSession(t, m)
		second, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); !errors.Is(err, ErrStateBusy) {
			t.Errorf("got %v, want ErrStateBusy", err)
		}
		if _, err := second.Session(t.Context()); !errors.Is(err, ErrStateBusy) {
			t.Errorf("got %v, want ErrStateBusy", err)
		}
	})
}

// Two directories with the same file stand for a copied state directory.
func TestHandoff_SessionTakenByAnother(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, one)
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		b, err := os.ReadFile(filepath.Join(one, stateName))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(two, stateName), string(b))
		cfg.StateDir = two
		m2, stop2 := manage(t, cfg)
		defer stop2()
		s2 := mustSession(t, m2)
		time.Sleep(time.Minute)
		if s.Context().Err() == nil && s2.Context().Err() == nil {
			t.Fatal("both still fight for one session")
		}
		a, c := mustSession(t, m), mustSession(t, m2)
		if a.ID() == c.ID() {
			t.Fatal("still one session")
		}
		if n := srv.Requests()["createSession"]; n > 20 {
			t.Errorf("%d handshakes", n)
		}
	})
}

// A network that drops connections now and then is not somebody else.
func TestHandoff_DroppedConnectionsAreNotTaken(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, handoffConfig(srv, dir))
		defer stop()
		s := mustSession(t, m)
		for range 20 {
			time.Sleep(1500 * time.Millisecond)
			srv.DropConnections()
		}
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
}

func TestHandoff_WhileDisconnected(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		id := owner(t, cfg, func(m *Manager) {
			srv.RefuseDial()
			srv.DropConnections()
			time.Sleep(time.Second)
			m.HandOver()
		})
		srv.Heal()
		if got := owner(t, cfg, (*Manager).HandOver); got != id {
			t.Errorf("got session %x, want %x", got, id)
		}
	})
}

// A server that lags behind what the former process saw must not serve the session.
func TestHandoff_LaggingServer(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := handoffConfig(srv, dir)
		cfg.Servers = []string{"lag:2181", "good:2181"}
		srv.Lag("lag:2181")
		if err := srv.Create("/new", nil); err != nil {
			t.Fatal(err)
		}
		srv.RefuseDial("lag:2181")
		m, stop := manage(t, cfg)
		s := mustSession(t, m)
		srv.Heal("lag:2181")
		if _, _, err := s.Get(t.Context(), "/new"); err != nil {
			t.Fatal(err)
		}
		m.HandOver()
		stop()
		for range 10 {
			m, stop := manage(t, cfg)
			next := mustSession(t, m)
			if next.ID() != s.ID() || next.Server() != "good:2181" {
				t.Errorf("session %x at %s", next.ID(), next.Server())
			}
			m.HandOver()
			stop()
		}
	})
}

func TestManager_CloseOfASessionStartsAnother(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		var wg sync.WaitGroup
		s := mustSession(t, m)
		wg.Go(func() { _ = s.Close() })
		<-s.Done()
		if !errors.Is(context.Cause(s.Context()), ErrClosed) {
			t.Error(context.Cause(s.Context()))
		}
		wg.Wait()
		if mustSession(t, m) == s {
			t.Error("the closed session again")
		}
	})
}

// The lock file is created in the state directory; a link leads it nowhere else.
func TestOpenState_FollowsNoLink(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(other, filepath.Join(dir, stateLock)); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir, thisHost()); err == nil {
		t.Error("no error")
	}
	if _, err := os.Lstat(other); err == nil {
		t.Error("the file was made")
	}
}
