package session

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// The error about a server that is too old names its version, if the server gives it,
// or else the request that it refuses. A newer server that refuses a request is not
// called old.
func TestVersion_OldServerIsNamed(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  memzk.Options
		old   bool
		words string
	}{
		{"3.4", memzk.Options{Version: "3.4"}, true, "3.4.13"},
		{"3.4 without srvr", memzk.Options{Version: "3.4", NoWords: true}, true, "older than ZooKeeper 3.5"},
		{"3.5", memzk.Options{Version: "3.5"}, false, ""},
		{"3.5 without srvr", memzk.Options{Version: "3.5", NoWords: true}, false, ""},
		{"3.8", memzk.Options{}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubbleWith(t, c.opts, func(t *testing.T, srv *memzk.Server) {
				m, stop := manage(t, memConfig(srv))
				defer stop()
				s := mustSession(t, m)
				if err := s.CheckServer(t.Context()); errors.Is(err, ErrOldServer) != c.old || err != nil && !c.old {
					t.Errorf("CheckServer: %v", err)
				}
				time.Sleep(time.Second) // a server closes the connection behind a refusal
				_, _, err := s.Create(t.Context(), "/a", nil, Persistent)
				time.Sleep(time.Second)
				_, multi := s.Multi(t.Context(), CreateOp("/b", nil, Persistent))
				for what, err := range map[string]error{"create": err, "multi": multi} {
					if !c.old && err != nil {
						t.Errorf("%s: %v", what, err)
					}
					if c.old && (!errors.Is(err, ErrOldServer) || ActionFor(err) != GiveUp || !strings.Contains(err.Error(), c.words)) {
						t.Errorf("%s: %v, want words about the version", what, err)
					}
				}
				if got := m.Status().Warning; (got != "") != c.old || !strings.Contains(got, c.words) {
					t.Errorf("the status warns %q", got)
				}
			})
		})
	}
	bubble(t, func(t *testing.T, srv *memzk.Server) { // as a proxy does that does not know the operation
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.Refuse(jute.OpCreate2)
		if _, _, err := s.Create(t.Context(), "/a", nil, Persistent); !errors.Is(err, ErrUnimplemented) || errors.Is(err, ErrOldServer) {
			t.Errorf("got %v from a server that is not old", err)
		}
	})
}

// A server is asked once an hour, however often it refuses, and one that hangs up on
// a request is asked, too. One that does not answer costs a bounded wait.
func TestVersion_AskedOnceAnHour(t *testing.T) {
	bubbleWith(t, memzk.Options{Version: "3.4", TickTime: time.Second}, func(t *testing.T, srv *memzk.Server) {
		var asked atomic.Int64
		cfg := memConfig(srv)
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := srv.Dial(ctx, network, addr)
			return &wordCounter{Conn: conn, asked: &asked}, err
		}
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		srv.HangUp(jute.OpSetData)
		_, _ = s.Set(t.Context(), "/a", nil, -1)
		mustConnect(t, s)
		time.Sleep(2 * versionLimit)
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times behind a connection that was closed at a request", n)
		}
		if !strings.Contains(m.Status().Warning, "3.4.13") {
			t.Errorf("the status warns %q", m.Status().Warning)
		}
		for range 30 {
			_, _, _ = s.Create(t.Context(), "/a", nil, Persistent)
			time.Sleep(time.Minute)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times in half an hour", n)
		}
		time.Sleep(time.Hour)
		srv.CutServerToClient()
		began := time.Now()
		_, _, _ = s.Create(t.Context(), "/a", nil, Persistent)
		if d := time.Since(began); d > versionLimit {
			t.Errorf("the error took %s", d)
		}
		srv.Heal()
	})
}

func mustConnect(t *testing.T, s *Session) {
	t.Helper()
	if _, err := s.connection(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

// wordCounter counts the connections that ask for the version.
type wordCounter struct {
	net.Conn

	asked *atomic.Int64
}

func (c *wordCounter) Write(b []byte) (int, error) {
	if string(b) == "srvr" {
		c.asked.Add(1)
	}
	return c.Conn.Write(b)
}
