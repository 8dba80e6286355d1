package session

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// awaitManager waits for a session in a state.
func awaitManager(t *testing.T, m *Manager, want State) *Session {
	t.Helper()
	for limit := soon(t); ; {
		s, err := m.Session(limit)
		if err != nil {
			t.Fatalf("no session that is %s: %v", want, err)
		}
		changed := s.Changed()
		if s.State() == want {
			return s
		}
		select {
		case <-changed:
		case <-s.Done():
		case <-limit.Done():
			t.Fatalf("the session is %s, not %s: %v", s.State(), want, s.lastError())
		}
	}
}

// readOnlyOptions are of servers that take readers without a majority.
var readOnlyOptions = zktest.Options{
	JVMFlags: []string{"-Dreadonlymode.enabled=true"},
	// ZooKeeper answers srvr although the list of words does not allow it.
	Settings: []string{"localSessionsEnabled=true", "localSessionsUpgradingEnabled=true", "4lw.commands.whitelist=conf"},
}

// Without a majority a session of a read-only server takes the place of the session,
// for reads; with one the former goes on, and what it owns has not blinked.
func TestReadOnly_ReadsGoOnWithoutAMajority(t *testing.T) {
	t.Parallel()
	e := zktest.StartEnsemble(t, 3, readOnlyOptions)
	m, _ := manageReal(t, Config{Servers: e.Addrs(), Timeout: 4 * time.Second, ReadOnly: true})
	never, _ := manageReal(t, Config{Servers: e.Addrs(), Timeout: 4 * time.Second})
	s := realSession(t, m)
	realSession(t, never)
	ctx := soon(t)
	_, stat, err := s.Create(ctx, "/a", []byte("v"), Ephemeral)
	if err != nil {
		t.Fatal(err)
	}
	e.Servers[0].Kill(t)
	e.Servers[1].Kill(t)
	reader := awaitManager(t, m, ReadOnly)
	if cause := context.Cause(s.Context()); !errors.Is(cause, ErrReadOnly) {
		t.Errorf("the session ended by %v", cause)
	}
	// A server may lag behind: without a majority nobody mends that.
	if data, _, err := reader.Get(ctx, "/a"); err != nil && !errors.Is(err, ErrNoNode) || err == nil && string(data) != "v" {
		t.Errorf("read without a majority: %q, %v", data, err)
	}
	if m.State() != ReadOnly || reader.Held() {
		t.Errorf("the manager says %s, and held is %v", m.State(), reader.Held())
	}
	if st := never.State(); st == Connected || st == ReadOnly {
		t.Errorf("who wants a majority is %s", st)
	}
	for name, write := range map[string]func(context.Context) error{
		"set":  func(ctx context.Context) error { _, err := reader.Set(ctx, "/a", nil, -1); return err },
		"sync": func(ctx context.Context) error { return reader.Sync(ctx, "/") },
	} {
		brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		if err := write(brief); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s without a majority: %v", name, err)
		}
		cancel()
	}
	e.Restart(t, e.Servers[0])
	e.Restart(t, e.Servers[1])
	again := awaitManager(t, m, Connected)
	if again.ID() != s.ID() || !again.Resumed() {
		t.Errorf("session %x goes on as %x", s.ID(), again.ID())
	}
	if got, ok, err := again.Exists(ctx, "/a"); err != nil || !ok || got.Czxid != stat.Czxid {
		t.Errorf("what it owns: %+v, %v, %v", got, ok, err)
	}
	if err := again.Sync(ctx, "/"); err != nil || !again.Held() {
		t.Errorf("no lease with a majority: %v", err)
	}
}

// readOnlyBed is two servers that know nothing of each other, and a manager of both.
func readOnlyBed(t *testing.T, f func(t *testing.T, a, b *memzk.Server, m *Manager)) {
	t.Helper()
	readOnlyBedWith(t, memzk.Options{TickTime: time.Second}, f)
}

func readOnlyBedWith(t *testing.T, o memzk.Options, f func(t *testing.T, a, b *memzk.Server, m *Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := memzk.New(o), memzk.New(o)
		defer a.Close()
		defer b.Close()
		cfg := memConfig(a)
		cfg.Servers, cfg.ReadOnly = []string{"a:2181", "b:2181"}, true
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "a:2181" {
				return a.Dial(ctx, network, addr)
			}
			return b.Dial(ctx, network, addr)
		}
		b.Stop()
		m, stop := manage(t, cfg)
		defer stop()
		f(t, a, b, m)
	})
}

func TestReadOnly_ForHours(t *testing.T) {
	readOnlyBed(t, func(t *testing.T, a, b *memzk.Server, m *Manager) {
		s := mustSession(t, m)
		if _, _, err := s.Create(t.Context(), "/a", nil, Ephemeral); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		a.SetReadOnly(true)
		reader := awaitManager(t, m, ReadOnly)
		if took := time.Since(began); took < s.Timeout() || took > s.Timeout()+10*time.Second {
			t.Errorf("reading again after %s", took)
		}
		time.Sleep(time.Hour)
		if now := mustSession(t, m); now != reader || now.State() != ReadOnly || now.Held() {
			t.Errorf("after an hour: %s, held %v", now.State(), now.Held())
		}
		// A cut is no end of it.
		a.SetReadOnly(true)
		awaitManager(t, m, ReadOnly)
		a.SetReadOnly(false)
		if again := awaitManager(t, m, Connected); again.ID() != s.ID() || !again.Resumed() {
			t.Errorf("session %x goes on as %x", s.ID(), again.ID())
		}
		// Once more, and the majority is elsewhere and knows nothing of the session.
		a.SetReadOnly(true)
		awaitManager(t, m, ReadOnly)
		b.Start()
		next := awaitManager(t, m, Connected)
		if next.ID() == s.ID() || next.Server() != "b:2181" {
			t.Errorf("session %x at %s", next.ID(), next.Server())
		}
	})
}

// Without a majority from the start there is a session for reads at once.
func TestReadOnly_FromTheStart(t *testing.T) {
	readOnlyBed(t, func(t *testing.T, a, b *memzk.Server, m *Manager) {
		a.SetReadOnly(true)
		reader := awaitManager(t, m, ReadOnly)
		if _, _, err := reader.Exists(t.Context(), "/"); err != nil {
			t.Error(err)
		}
		brief, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := reader.Create(brief, "/a", nil, Persistent); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write does not wait for a majority: %v", err)
		}
		b.Start()
		if s := awaitManager(t, m, Connected); s.Server() != "b:2181" || s.Resumed() {
			t.Errorf("a session at %s, resumed %v", s.Server(), s.Resumed())
		}
	})
}

// No server answers srvr. A session of a read-only server finds the majority all the
// same, and leaves that server no sooner.
func TestReadOnly_NoFourLetterWords(t *testing.T) {
	readOnlyBedWith(t, memzk.Options{TickTime: time.Second, NoWords: true}, func(t *testing.T, a, b *memzk.Server, m *Manager) {
		a.SetReadOnly(true)
		reader := awaitManager(t, m, ReadOnly)
		time.Sleep(time.Hour)
		if now := mustSession(t, m); now != reader || now.State() != ReadOnly {
			t.Errorf("after an hour: %s", now.State())
		}
		b.Start()
		if s := awaitManager(t, m, Connected); s.Server() != "b:2181" {
			t.Errorf("a session at %s", s.Server())
		}
	})
}
