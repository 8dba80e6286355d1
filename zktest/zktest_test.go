package zktest_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	internal "github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/zktest"
)

// A partition, an expiry and a lost reply in virtual time.
func TestServer_FaultsInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		a, b := zk.Session(t, "a"), zk.Session(t, "b")
		hold, err := recipe.NewLock(a, recipe.LockConfig{Path: "/locks/x"}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		zk.Partition("a")
		next, err := recipe.NewLock(b, recipe.LockConfig{Path: "/locks/x"}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if hold.Err() == nil {
			t.Error("both hold the lock")
		}
		if next.Fence() <= hold.Fence() {
			t.Error("the fence did not grow")
		}
		zk.LoseReply(zktest.Delete, 1, true)
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		zk.Put(t, "/config/app/timeout", "5s")
		if data, ok := zk.Data("/config/app/timeout"); !ok || data != "5s" {
			t.Errorf("data %q, %v", data, ok)
		}
		zk.Remove(t, "/config/app/timeout")
		if len(zk.List("/config/app")) != 0 || zk.Owner("/config/app") != 0 {
			t.Error("not removed")
		}
	})
}

// A server that lags shows an old tree until it has caught up; one that has lost its
// majority is read only.
func TestServer_Ensemble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		a, b := zk.Session(t, "a"), zk.Session(t, "b")
		zk.Put(t, "/x", "old")
		zk.Lag("b")
		if _, err := a.Set(t.Context(), "/x", []byte("new"), -1); err != nil {
			t.Fatal(err)
		}
		get := func(want string) {
			t.Helper()
			if data, _, err := b.Get(t.Context(), "/x"); err != nil || string(data) != want {
				t.Errorf("got %q, %v, want %s", data, err, want)
			}
		}
		get("old")
		zk.CatchUp("b")
		get("new")
		cfg := zk.Config("c")
		cfg.ReadOnly = true
		zk.SetReadOnly(true)
		m, err := session.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		c, err := m.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		brief, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if _, err := c.Set(brief, "/x", nil, -1); !errors.Is(err, context.DeadlineExceeded) || c.State() != session.ReadOnly {
			t.Errorf("state %s, the write waits for a majority: %v", c.State(), err)
		}
		zk.SetReadOnly(false)
		if c, err = m.Session(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if c, err = m.Session(t.Context()); err != nil || c.State() == session.ReadOnly {
			t.Errorf("afterwards: %v", err)
		}
		cancel()
		<-done
	})
}

// Of three servers one may die: clients move, sessions and data stay. Without a majority
// reads and writes wait, and no session expires.
func TestServer_Majority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t, zktest.Options{Servers: 3})
		s := zk.Session(t, "a")
		hold, err := recipe.NewLock(s, recipe.LockConfig{Path: "/locks/x"}).Acquire(t.Context())
		if err != nil || zk.Leader() != "zk1" {
			t.Fatalf("leader %s, %v", zk.Leader(), err)
		}
		zk.Kill("zk1")
		zk.Put(t, "/x", "with two")
		if data, _, err := s.Get(t.Context(), "/x"); err != nil || string(data) != "with two" || zk.Leader() != "zk2" {
			t.Errorf("of three, two: leader %s, %q, %v", zk.Leader(), data, err)
		}
		zk.Kill("zk2")
		brief, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if _, _, err := s.Get(brief, "/x"); !errors.Is(err, context.DeadlineExceeded) || zk.Leader() != "" {
			t.Errorf("of three, one: leader %q, %v", zk.Leader(), err)
		}
		time.Sleep(time.Hour)
		zk.Revive("zk1", "zk2")
		st, err := s.Set(t.Context(), "/x", []byte("again"), -1)
		if err != nil || s.Server() == "" || zk.Leader() != "zk3" {
			t.Errorf("leader %s, %v", zk.Leader(), err)
		}
		zk.Lead("zk1")
		if _, _, err := s.Get(t.Context(), "/x"); err != nil { // it waits for the next connection
			t.Error(err)
		}
		next, err := s.Set(t.Context(), "/x", []byte("under another leader"), -1)
		if err != nil || next.Mzxid>>32 != st.Mzxid>>32+1 {
			t.Errorf("another leader begins an epoch: %x after %x, %v", next.Mzxid, st.Mzxid, err)
		}
		if owner := zk.Owner("/locks/x/" + zk.List("/locks/x")[0]); owner != s.ID() {
			t.Errorf("owner %x: the session %x lives on", owner, s.ID())
		}
		if hold.Err() == nil {
			t.Error("after an hour without an answer, the lock is held")
		}
		zk.Wipe()
		<-s.Done()
		if len(zk.List("/locks")) != 0 {
			t.Error("the disks were lost, and a znode is there")
		}
	})
}

// A server that lags is refused by a client that has seen more; the client finds another.
func TestServer_OneLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t, zktest.Options{Servers: 3})
		s := zk.Session(t, "a")
		zk.Put(t, "/x", "old")
		at, _, _ := strings.Cut(s.Server(), ":")
		zk.Lag(at)
		zk.Put(t, "/x", "new")
		read := func(want string) {
			t.Helper()
			if data, _, err := s.Get(t.Context(), "/x"); err != nil || string(data) != want {
				t.Errorf("got %q from %s, %v, want %s", data, s.Server(), err, want)
			}
		}
		read("old")
		zk.Partition(at)
		read("new")
		for _, other := range []string{"zk1", "zk2", "zk3"} {
			if other != at {
				zk.Kill(other)
				zk.Heal()
				break
			}
		}
		read("new")
		zk.CatchUp(at)
		read("new")
	})
}

// With read-only mode a minority serves reads to clients that want them.
func TestServer_MinorityReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t, zktest.Options{Servers: 3, ReadOnly: true})
		zk.Put(t, "/x", "here")
		zk.Kill("zk1", "zk3")
		cfg := zk.Config("a")
		cfg.ReadOnly = true
		s, err := session.Dial(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if data, _, err := s.Get(t.Context(), "/x"); err != nil || string(data) != "here" || s.State() != session.ReadOnly {
			t.Errorf("%s: %q, %v", s.State(), data, err)
		}
		zk.Revive("zk1")
		<-s.Done() // the next session may write
		defer func() {
			if recover() == nil {
				t.Error("an unknown name is no fault")
			}
		}()
		zk.Kill("zk4")
	})
}

func TestServer_Users(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t, zktest.Options{Users: map[string]string{"agent": "secret"}, RequireSASL: true})
		cfg := zk.Config("a")
		cfg.SASL = session.DigestMD5("agent", "secret")
		s, err := session.Dial(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		cfg.SASL = session.DigestMD5("agent", "guess")
		if _, err := session.Dial(t.Context(), cfg); !errors.Is(err, session.ErrAuthFailed) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}

func TestServer_TLS(t *testing.T) {
	zk := zktest.NewServer(t)
	certificate, pool := internal.Certificate(t, filepath.Join(t.TempDir(), "server.pem"), "localhost")
	addr := zk.ListenTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	cfg := session.Config{Servers: []string{addr}, TLS: func() (*tls.Config, error) {
		return &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}, nil
	}}
	s, err := session.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.Get(t.Context(), "/"); err != nil {
		t.Error(err)
	}
	cfg.TLS = func() (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS12}, nil }
	if _, err := session.Dial(t.Context(), cfg); !errors.Is(err, session.ErrTLS) {
		t.Errorf("an unknown CA: %v", err)
	}
}

// Each goes on in the next session, tries again what time may mend, and returns
// everything else.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zk := zktest.NewServer(t)
		m := zk.Manager(t, "a")
		var seen []int64
		errApp := errors.New("application")
		err := m.Each(t.Context(), func(_ context.Context, s *session.Session) error {
			seen = append(seen, s.ID())
			switch len(seen) {
			case 1:
				zk.Expire(s)
				<-s.Done()
				return context.Cause(s.Context())
			case 2, 3:
				return session.ErrUnknown
			}
			return errApp
		})
		if !errors.Is(err, errApp) || len(seen) != 4 || seen[0] == seen[1] || seen[1] != seen[2] || seen[2] != seen[3] {
			t.Errorf("sessions %x, %v", seen, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		node := recipe.NewNode(recipe.NodeConfig{Path: "/n"})
		time.AfterFunc(10*time.Second, func() {
			for s := zk.Owner("/n"); s != 0; s = 0 {
				z, err := m.Session(ctx)
				if err == nil {
					zk.Expire(z)
				}
			}
		})
		if err := m.Each(ctx, node.Run); err != nil {
			t.Errorf("a node over sessions: %v", err)
		}
	})
}

// A module of its own imports the library and this package, and its test passes.
func TestOutsideModule(t *testing.T) {
	testhelp.OnlyAll(t, "it compiles the library anew")
	if testing.Short() {
		t.Skip("builds a module")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	// The versions that this module needs, so that nothing is downloaded.
	text := strings.Replace(string(mod), "module github.com/zkagent/zkagent", "module example.org/worker", 1)
	text += "\nrequire github.com/zkagent/zkagent v0.0.0\n\nreplace github.com/zkagent/zkagent => " + root + "\n"
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile(filepath.Join("testdata", "worker_test.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"go.mod": []byte(text), "go.sum": sum, "worker_test.go": test} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-mod=mod", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
