package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

func TestSession_Reconnects(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		for n := range uint64(20) {
			_, _, w, err := s.ExistsW(t.Context(), fmt.Sprintf("/x%d", n))
			if err != nil {
				t.Fatal(err)
			}
			changed := s.Changed()
			srv.DropConnections()
			<-changed
			if err := srv.Create(fmt.Sprintf("/x%d", n), nil); err != nil {
				t.Fatal(err)
			}
			<-w.C()
			if got := s.Connection(); got != n+2 {
				t.Fatalf("got connection %d, want %d", got, n+2)
			}
		}
	})
}

func TestSession_HungServerCostsNoSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Servers = []string{"good:2181", "hung:2181"}
		srv.Partition("hung:2181") // accepts, and never answers
		s := dialMem(t, cfg)
		defer s.Close()
		for range 10 {
			if err := s.Sync(t.Context(), "/"); err != nil { // of use: without that the next would wait
				t.Fatal(err)
			}
			changed := s.Changed()
			srv.DropConnections("good:2181")
			<-changed
			start := time.Now()
			for s.State() != Connected {
				<-s.Changed()
			}
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("reconnected after %s, want at most the handshake limit of 3 s and a pause", took)
			}
			if !s.Held() {
				t.Error("lease lost over a hung server")
			}
		}
		if s.Context().Err() != nil {
			t.Error(context.Cause(s.Context()))
		}
	})
}

// A server that hears nothing but goes on pushing events keeps the library's own
// connection alive until long after the lease.
func TestSession_OneWayCutIsNoticed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		if err := srv.Create("/n", nil); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		defer close(stop)
		_, _, w, err := s.GetW(t.Context(), "/n")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		srv.CutClientToServer()
		cut := time.Now()
		if err := srv.Set("/n", []byte("x")); err != nil {
			t.Fatal(err)
		}
		<-w.C() // events still come
		for s.State() == Connected {
			<-s.Changed()
		}
		timeout := s.Timeout()
		if took := time.Since(cut); took > timeout/3+timeout/6 {
			t.Errorf("noticed after %s, want at most T/3 + T/6 = %s", took, timeout/2)
		}
		held, cancel := s.WithLease(t.Context())
		defer cancel()
		<-held.Done()
		if !errors.Is(context.Cause(held), ErrSuspended) {
			t.Errorf("cause %v", context.Cause(held))
		}
		if took := time.Since(cut); took > timeout*2/3 {
			t.Errorf("lease ended after %s, want at most 2/3 T = %s", took, timeout*2/3)
		}
		if s.Held() {
			t.Error("held")
		}
		srv.Heal()
	})
}

func TestSession_LeaseEndsBeforeTheServerExpires(t *testing.T) {
	// While only the answers are cut, every new handshake keeps the session alive.
	for _, cut := range []string{"both", "to server"} {
		t.Run(cut, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				m, stop := manage(t, memConfig(srv))
				defer stop()
				s := mustSession(t, m)
				if _, _, err := s.Create(t.Context(), "/e", nil, Ephemeral); err != nil {
					t.Fatal(err)
				}
				time.Sleep(7 * time.Second)
				if cut == "both" {
					srv.Partition()
				} else {
					srv.CutClientToServer()
				}
				held, cancel := s.WithLease(t.Context())
				defer cancel()
				<-held.Done()
				ended := time.Now()
				for srv.Exists("/e") {
					time.Sleep(100 * time.Millisecond)
				}
				if margin := time.Since(ended); margin < s.Timeout()/3-time.Second {
					t.Errorf("margin %s, want about T/3 = %s", margin, s.Timeout()/3)
				}
				srv.Heal()
				<-s.Done()
				if !errors.Is(context.Cause(s.Context()), ErrExpired) {
					t.Errorf("cause %v", context.Cause(s.Context()))
				}
				mustSession(t, m)
			})
		})
	}
}

func TestSession_WithLease(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		held, cancel := s.WithLease(t.Context())
		time.Sleep(10 * time.Minute)
		if held.Err() != nil {
			t.Fatal(context.Cause(held))
		}
		cancel()
		if !errors.Is(context.Cause(held), context.Canceled) {
			t.Error(context.Cause(held))
		}
		held, cancel = s.WithLease(t.Context())
		defer cancel()
		_ = s.Close()
		<-held.Done()
		if !errors.Is(context.Cause(held), ErrClosed) {
			t.Error(context.Cause(held))
		}
	})
}

func TestSession_ServerStoppedForAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var dials atomic.Int64
		cfg := memConfig(srv)
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return srv.Dial(ctx, network, addr)
		}
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		srv.Stop()
		time.Sleep(time.Hour)
		if s.State() != Suspended || m.Status().LastError == "" {
			t.Errorf("state %s, status %+v", s.State(), m.Status())
		}
		if n := dials.Load(); n < 1000 || n > 3000 {
			t.Errorf("%d attempts in an hour, want one every 1.5 to 3 s", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := s.Get(ctx, "/"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNoServer) {
			t.Errorf("got %v", err)
		}
		srv.Start()
		if _, err := m.Session(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := m.Session(t.Context()); err != nil || s.sync(t) != nil {
			t.Fatal(err)
		}
	})
}

func (s *Session) sync(t *testing.T) error {
	t.Helper()
	return s.Sync(t.Context(), "/")
}

func TestManager_EnsembleReplacedByAnEmptyOne(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		s := mustSession(t, m)
		for i := range 10 {
			if _, _, err := s.Create(t.Context(), fmt.Sprintf("/n%d", i), nil, Persistent); err != nil {
				t.Fatal(err)
			}
		}
		wiped := time.Now()
		srv.Stop()
		srv.Wipe()
		srv.Start()
		<-s.Done()
		timeout := s.Timeout()
		if took := time.Since(wiped); took < timeout*3/2 || took > 3*timeout {
			t.Errorf("given up after %s, want between 1.5 T and 3 T = %s", took, 3*timeout)
		}
		if !errors.Is(context.Cause(s.Context()), ErrExpired) {
			t.Errorf("cause %v", context.Cause(s.Context()))
		}
		if err := mustSession(t, m).Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
}

// One listed server is down for good. A session that the other servers do not know ends
// all the same, and the next process does not wait for that server.
func TestManager_EnsembleReplacedWhileOneServerIsDown(t *testing.T) {
	for _, down := range []func(*memzk.Server, ...string){(*memzk.Server).RefuseDial, (*memzk.Server).Partition} {
		for _, restart := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				cfg := memConfig(srv)
				cfg.Servers, cfg.StateDir = []string{"a:2181", "b:2181", "down:2181"}, t.TempDir()
				m, stop := manage(t, cfg)
				s := mustSession(t, m)
				for i := range 10 {
					if _, _, err := s.Create(t.Context(), fmt.Sprintf("/n%d", i), nil, Persistent); err != nil {
						t.Fatal(err)
					}
				}
				if restart {
					m.HandOver()
					stop()
				}
				srv.Stop()
				srv.Wipe()
				down(srv, "down:2181")
				srv.Start()
				begin := time.Now()
				if restart {
					m, stop = manage(t, cfg)
				} else {
					<-s.Done()
				}
				defer stop()
				if next := mustSession(t, m); next.ID() == s.ID() || next.Resumed() {
					t.Error("still the former session")
				}
				if took, limit := time.Since(begin), 4*memConfig(srv).Timeout; took > limit {
					t.Errorf("a new session after %s", took)
				}
			})
		}
	}
}

// A server that cannot be reached is not taken for one that lost the session.
func TestManager_UnreachableServersEndNoSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Servers = []string{"a:2181", "b:2181"}
		s := dialMem(t, cfg)
		defer s.Close()
		srv.RefuseDial()
		srv.Stop()
		time.Sleep(time.Hour)
		srv.Heal()
		srv.Start()
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
}

func TestManager_StartsWithoutServers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		srv.RefuseDial()
		m, stop := manage(t, memConfig(srv))
		defer stop()
		time.Sleep(time.Minute)
		if st := m.Status(); st.State != Connecting || st.LastError == "" {
			t.Errorf("status %+v", st)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Session(ctx); !errors.Is(err, ErrNoServer) {
			t.Errorf("got %v, want ErrNoServer", err)
		}
		srv.Heal()
		mustSession(t, m)
	})
}

func TestManager_EndsWhateverHappens(t *testing.T) {
	faults := map[string]func(*memzk.Server){
		"no dial":     func(s *memzk.Server) { s.RefuseDial(); s.DropConnections() },
		"black hole":  func(s *memzk.Server) { s.BlackHole(true) },
		"dropped":     func(s *memzk.Server) { s.DropConnections() },
		"new hanging": func(s *memzk.Server) { s.BlackHole(true); s.DropConnections() },
		"stopped":     func(s *memzk.Server) { s.Stop() },
		"paused":      func(s *memzk.Server) { s.Pause() },
		"none":        func(*memzk.Server) {},
	}
	for name, fault := range faults {
		for _, after := range []time.Duration{0, 50 * time.Millisecond, 5 * time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(name, after), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *memzk.Server) {
					m, stop := manage(t, memConfig(srv))
					mustSession(t, m)
					fault(srv)
					time.Sleep(after)
					start := time.Now()
					stop()
					if took := time.Since(start); took > 4*time.Second {
						t.Errorf("took %s to end", took)
					}
					srv.ClearFaults()
					srv.Resume()
				})
			})
		}
	}
}

func TestSession_TooLargeIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		_, _, err := s.Create(t.Context(), "/big", make([]byte, DefaultMaxFrame), Persistent)
		if !errors.Is(err, ErrTooLarge) || ActionFor(err) != GiveUp {
			t.Errorf("got %v, want ErrTooLarge", err)
		}
		if s.Connection() != 1 || s.State() != Connected {
			t.Errorf("connection %d, state %s", s.Connection(), s.State())
		}
	})
}

func TestSession_TooLargeReplyIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.MaxReply = 2000
		s := dialMem(t, cfg)
		defer s.Close()
		paths := make([]string, 20)
		for i := range paths {
			paths[i] = fmt.Sprintf("/n%d", i)
			if err := srv.Create(paths[i], make([]byte, 900)); err != nil {
				t.Fatal(err)
			}
		}
		if err := srv.Create("/big", make([]byte, 3000)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Get(t.Context(), "/big"); !errors.Is(err, ErrTooLarge) {
			t.Errorf("got %v, want ErrTooLarge", err)
		}
		res, err := s.GetMany(t.Context(), paths)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range res {
			if r.Err != nil || len(r.Data) != 900 {
				t.Errorf("%d: %d bytes, %v", i, len(r.Data), r.Err)
			}
		}
		if s.Connection() != 1 {
			t.Errorf("got %d connections, want 1", s.Connection())
		}
	})
}

func TestGetMany_FallsBackWhereRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		srv.Refuse(jute.OpMultiRead)
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		var paths []string
		for i := range 600 {
			paths = append(paths, fmt.Sprintf("/n%d", i))
			if i%2 == 0 {
				if err := srv.Create(paths[i], []byte(paths[i])); err != nil {
					t.Fatal(err)
				}
			}
		}
		res, err := s.GetMany(t.Context(), paths)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range res {
			if i%2 == 0 && string(r.Data) != paths[i] || i%2 == 1 && !errors.Is(r.Err, ErrNoNode) {
				t.Fatalf("%d: %q %v", i, r.Data, r.Err)
			}
		}
	})
}

func TestSession_ContextEndsAWait(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := s.Set(ctx, "/", nil, -1)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnknown) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("took %s", took)
		}
		srv.Resume()
		synctest.Wait()
		if _, _, err := s.Get(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
}

func TestSession_AuthComesFirstAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Auth = []Auth{{"digest", []byte("ann:pw")}}
		s := dialMem(t, cfg)
		defer s.Close()
		if _, _, err := s.Create(t.Context(), "/mine", []byte("1"), Persistent); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			srv.DropConnections()
			if _, err := s.Set(t.Context(), "/mine", []byte("2"), -1); err != nil && !errors.Is(err, ErrUnknown) {
				t.Fatal(err)
			}
		}
		other := dialMem(t, memConfig(srv))
		defer other.Close()
		if _, err := other.Set(t.Context(), "/mine", nil, -1); !errors.Is(err, ErrNoAuth) {
			t.Errorf("got %v, want ErrNoAuth", err)
		}
		if _, _, err := other.Get(t.Context(), "/mine"); err != nil {
			t.Error(err)
		}
	})
}

func TestDial_AuthRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Auth = []Auth{{"nonsense", []byte("x")}}
		s, err := Dial(t.Context(), cfg)
		if err == nil {
			<-s.Done()
			err = context.Cause(s.Context())
			_ = s.Close()
		}
		if !errors.Is(err, ErrAuthFailed) {
			t.Errorf("got %v, want ErrAuthFailed", err)
		}
	})
}

// A server that refuses the identity is no connection, not even until it says so: no
// session begins, and one that exists waits for a server that accepts it.
func TestSession_RefusedIsNotConnected(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Auth, cfg.Timeout = []Auth{{"digest", []byte("me:s3cret")}, {"digest", []byte("also:me")}}, 20*time.Second
		m, stop := manage(t, cfg)
		defer stop()
		srv.RefuseWith(jute.OpAuth, jute.ErrCodeAuthFailed)
		srv.Delay(jute.OpAuth, 500*time.Millisecond)
		refused := func(want State) {
			t.Helper()
			for range 1000 {
				if got := m.State(); got == Connected || got == ReadOnly {
					t.Fatalf("the session is %s", got)
				}
				time.Sleep(10 * time.Millisecond) // virtual
			}
			if st := m.Status(); !st.Refused || st.State != want || !strings.Contains(st.LastError, "scheme digest") {
				t.Fatalf("got %+v", st)
			}
		}
		refused(Connecting)
		srv.ClearFaults()
		s := mustSession(t, m)
		id := s.ID()
		srv.RefuseWith(jute.OpAuth, jute.ErrCodeAuthFailed)
		s.dropForTest()
		refused(Suspended)
		srv.ClearFaults()
		if _, _, err := s.Exists(t.Context(), "/"); err != nil || s.ID() != id || s.Requests()["auth"] < 6 {
			t.Errorf("got %v from %x, before it was %x; %v", err, s.ID(), id, s.Requests())
		}
	})
}

// A name with three addresses, of which one hangs at the dial and one behind it, and
// one that refuses: each is tried in its turn, whichever is first.
func TestSession_AddressesOfOneName(t *testing.T) {
	for first := range 4 {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			cfg := memConfig(srv)
			cfg.Servers, cfg.Timeout = []string{"zk:2181"}, 6*time.Second
			cfg, err := cfg.complete()
			if err != nil {
				t.Fatal(err)
			}
			cfg.resolve = func(context.Context, string) ([]string, error) {
				return []string{"10.0.0.4", "10.0.0.1", "10.0.0.3", "10.0.0.2"}, nil
			}
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == "10.0.0.1:2181" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return srv.Dial(ctx, network, addr)
			}
			srv.Partition("10.0.0.2:2181")
			srv.RefuseDial("10.0.0.3:2181")
			s := newSession(t.Context(), cfg)
			s.hosts.first = first
			lib, events, err := s.connect()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				s.shutdown(false)
				s.finish(lib, events)
			}()
			began := time.Now()
			select {
			case <-s.up:
			case <-time.NewTimer(time.Minute).C:
				t.Fatal("no session within a minute, and one address serves")
			}
			if d := time.Since(began); d > 2*handshakeLimit(cfg.Timeout)+time.Second {
				t.Errorf("beginning at address %d it took %s", first, d)
			}
			if s.Server() != "zk:2181" {
				t.Errorf("the server is %s", s.Server())
			}
		})
	}
}

// Events that a server pushes do not stand for the answer to a ping: a server that
// does not hear us ends the session, however much it sends.
func TestSession_EventsAreNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		manyZnodes(t, srv, 2)
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		c, err := s.WatchRecursive(t.Context(), "/many")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
		srv.CutClientToServer()
		defer srv.Heal()
		for began := time.Now(); s.State() == Connected; time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > s.Timeout()*2/3 {
				t.Fatalf("still connected after %s without an answer", time.Since(began))
			}
			if err := srv.Set("/many/k000", []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	})
}
