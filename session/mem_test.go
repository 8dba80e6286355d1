package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// bubble runs f in virtual time with a server in memory.
func bubble(t *testing.T, f func(t *testing.T, srv *memzk.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		f(t, srv)
	})
}

func memConfig(srv *memzk.Server) Config {
	return Config{Servers: []string{"a:2181"}, Dial: srv.Dial, Timeout: 12 * time.Second}
}

func dialMem(t *testing.T, cfg Config) *Session {
	t.Helper()
	s, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// manage runs a manager until the returned function is called.
func manage(t *testing.T, cfg Config) (*Manager, func()) {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return m, func() { cancel(); wg.Wait() }
}

func mustSession(t *testing.T, m *Manager) *Session {
	t.Helper()
	s, err := m.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestSession_IdleForAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		if _, _, err := s.Create(t.Context(), "/e", nil, Ephemeral); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			time.Sleep(time.Minute)
			if !s.Held() || s.State() != Connected {
				t.Fatalf("held %v, state %s", s.Held(), s.State())
			}
		}
		if got := s.Connection(); got != 1 {
			t.Errorf("got %d connections, want 1", got)
		}
		if !srv.Exists("/e") {
			t.Error("ephemeral is gone")
		}
	})
}

func TestSession_CloseDeletesEphemerals(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		if _, _, err := s.Create(t.Context(), "/e", nil, Ephemeral); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 100*time.Millisecond { // the library's own Close may wait for a second
			t.Errorf("close took %s", took)
		}
		if srv.Exists("/e") {
			t.Error("ephemeral is still there")
		}
		if !errors.Is(context.Cause(s.Context()), ErrClosed) {
			t.Errorf("cause %v", context.Cause(s.Context()))
		}
		if _, _, err := s.Get(t.Context(), "/"); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

func TestManager_NewSessionAfterExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		s := mustSession(t, m)
		_, _, w, err := s.ExistsW(t.Context(), "/x")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		srv.ExpireSession(s.ID())
		<-s.Done()
		if !errors.Is(context.Cause(s.Context()), ErrExpired) || s.State() != Expired {
			t.Fatalf("cause %v, state %s", context.Cause(s.Context()), s.State())
		}
		// The next handshake tells; without it, silence would after 1.5 T.
		if took := time.Since(start); took > s.Timeout()/3 {
			t.Errorf("learned of it after %s of virtual time", took)
		}
		if closed(w.C()) {
			t.Error("watch closed by the end of the session")
		}
		s2 := mustSession(t, m)
		if s2.ID() == s.ID() || s2 == s {
			t.Error("same session again")
		}
		if got := m.Status().Expirations; got != 1 {
			t.Errorf("got %d expirations, want 1", got)
		}
	})
}

func TestSession_SilentNewSessionIsExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		s := mustSession(t, m)
		srv.SilentNewSession()
		srv.DropConnections()
		<-s.Done()
		if !errors.Is(context.Cause(s.Context()), ErrExpired) {
			t.Fatalf("cause %v", context.Cause(s.Context()))
		}
		mustSession(t, m)
	})
}

func TestSession_ExpiryInTheMiddleOfARead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		s := mustSession(t, m)
		srv.Delay(jute.OpGetData, time.Second)
		res := make(chan error)
		go func() {
			_, _, err := s.Get(t.Context(), "/")
			res <- err
		}()
		synctest.Wait()
		srv.ExpireSession(s.ID())
		if err := <-res; err != nil && !errors.Is(err, ErrExpired) {
			t.Errorf("got %v, want nil or ErrExpired", err)
		}
		<-s.Done()
	})
}

func TestSession_LostReplies(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("before=", before), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				s := dialMem(t, memConfig(srv))
				defer s.Close()
				srv.LoseReply(jute.OpCreate2, 1, before)
				_, _, err := s.Create(t.Context(), "/a", nil, Persistent)
				if !errors.Is(err, ErrUnknown) {
					t.Errorf("got %v, want ErrUnknown", err)
				}
				if srv.Exists("/a") == before {
					t.Errorf("exists %v", !before)
				}
				srv.LoseReply(jute.OpGetData, 1, before)
				if _, _, err := s.Get(t.Context(), "/"); err != nil {
					t.Errorf("read was not repeated: %v", err)
				}
				srv.LoseReply(jute.OpCreate2, 1, before)
				p, st, err := s.CreateProtected(t.Context(), "/", "x-", nil, EphemeralSequential)
				if err != nil || st.EphemeralOwner != s.ID() {
					t.Fatalf("%q %v", p, err)
				}
				if own, err := s.Ephemerals(t.Context(), "/"); err != nil || len(own) != 1 || own[0] != p {
					t.Errorf("got %v %v, want %s alone", own, err, p)
				}
			})
		})
	}
}

func TestCreateProtected_SurvivesAnyNumberOfLosses(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.LoseReply(jute.OpCreate2, 1, false)
		for n := range 4 {
			srv.LoseReply(jute.OpSync, n+1, true)
			srv.LoseReply(jute.OpGetChildren2, n+1, false)
			srv.LoseReply(jute.OpExists, n+1, true)
		}
		p, _, err := s.CreateProtected(t.Context(), "/", "x-", nil, EphemeralSequential)
		if err != nil {
			t.Fatal(err)
		}
		if own, err := s.Ephemerals(t.Context(), "/"); err != nil || len(own) != 1 || own[0] != p {
			t.Errorf("got %v %v, want %s alone", own, err, p)
		}
	})
}

func TestCreateProtected_CancelCleansUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.Delay(jute.OpCreate2, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, err := s.CreateProtected(ctx, "/", "x-", nil, PersistentSequential)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnknown) {
			t.Fatalf("got %v", err)
		}
		time.Sleep(5 * time.Second)
		if got, _ := srv.Children("/"); len(got) > 1 { // zookeeper itself
			t.Errorf("left behind: %v", got)
		}
	})
}
