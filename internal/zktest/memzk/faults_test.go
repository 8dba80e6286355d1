package memzk

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// inBubble runs f with a fresh server in virtual time.
func inBubble(t *testing.T, opts Options, f func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New(opts)
		defer s.Close()
		f(t, s)
	})
}

func TestLostReplies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before bool
		want   bool // the second znode exists
	}{
		{"before it is applied", true, false},
		{"after it is applied", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, s *Server) {
				t.Helper()
				struck := s.LoseReply(jute.OpCreate, 2, tt.before)
				c := dial(t, s)
				mustCreate(t, c, "/first", 0)
				if _, err := c.Create("/second", nil, 0); !errors.Is(err, io.EOF) {
					t.Errorf("the second create: got %v, want EOF", err)
				}
				<-struck
				c.Drop()
				if got := s.Exists("/second"); got != tt.want {
					t.Errorf("the second znode exists: got %v, want %v", got, tt.want)
				}
				c = dial(t, s, raw.Options{SessionID: c.Session.SessionID, Password: c.Session.Password})
				mustCreate(t, c, "/third", 0)
				c.Close()
			})
		})
	}
}

func TestLostHandshake(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		s.LoseReply(jute.OpCreateSession, 1, false)
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Open(nc); !errors.Is(err, io.EOF) {
			t.Errorf("handshake: got %v, want EOF", err)
		}
		if got, want := len(s.SessionIDs()), 1; got != want {
			t.Errorf("sessions: got %d, want %d", got, want)
		}
	})
}

func TestDelayHoldsReplyAndWhatFollows(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s)
		s.Delay(jute.OpCreate, 3*time.Second)
		began := time.Now()
		if err := c.Send(1, jute.OpCreate, raw.Body("/x", nil, raw.OpenACL, 0)); err != nil {
			t.Fatal(err)
		}
		if err := c.Send(2, jute.OpExists, raw.Body("/x", false)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !s.Exists("/x") {
			t.Error("the request was not applied at once")
		}
		for want := range int32(2) {
			r, err := c.Receive()
			if err != nil || r.Xid != want+1 {
				t.Fatalf("reply: xid %d, %v; want xid %d", r.Xid, err, want+1)
			}
			if got := time.Since(began); got != 3*time.Second {
				t.Errorf("reply %d came after %v, want 3s", r.Xid, got)
			}
		}
		s.Delay(jute.OpCreate, 0)
		mustCreate(t, c, "/y", 0)
		if got := time.Since(began); got != 3*time.Second {
			t.Errorf("after the delay was ended: %v, want 3s", got)
		}
		c.Close()
	})
}

func TestRefusedOperation(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		s.Refuse(jute.OpAddWatch)
		s.RefuseWith(jute.OpCreate, jute.ErrCodeQuotaExceeded)
		c := dial(t, s)
		if code, err := c.Create("/x", nil, 0); code != jute.ErrCodeQuotaExceeded || err != nil {
			t.Errorf("create: code %d, %v; want %d", code, err, jute.ErrCodeQuotaExceeded)
		}
		r, err := c.Call(jute.OpAddWatch, raw.Body("/x", jute.AddWatchPersistent))
		if err != nil || r.Err != jute.ErrCodeUnimplemented {
			t.Errorf("addWatch: code %d, %v; want %d", r.Err, err, jute.ErrCodeUnimplemented)
		}
		if _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
			t.Errorf("after a refused operation: got %v, want EOF", err)
		}
		c.Drop()
		s.Allow(jute.OpCreate)
		c = dial(t, s)
		mustCreate(t, c, "/x", 0)
		c.Close()
	})
}

func TestSilentNewSession(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s)
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		s.SilentNewSession()
		c.Drop()
		c2 := dial(t, s, raw.Options{SessionID: c.Session.SessionID, Password: c.Session.Password})
		if c2.Session.SessionID == c.Session.SessionID {
			t.Error("the session was taken up")
		}
		if s.Exists("/e") {
			t.Error("the ephemeral outlived its session")
		}
		c2.Close()
	})
}

func TestExpireSessionNow(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c, watcher := dial(t, s), dial(t, s)
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		if _, _, _, err := watcher.Get("/e", true); err != nil {
			t.Fatal(err)
		}
		if !s.ExpireSession(c.Session.SessionID) || s.ExpireSession(c.Session.SessionID) {
			t.Error("a session expires once")
		}
		if _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection: got %v, want EOF", err)
		}
		r, err := watcher.Receive()
		if err != nil || r.Xid != jute.XidNotification {
			t.Errorf("the watcher got xid %d, %v; want a notification", r.Xid, err)
		}
		watcher.Close()
		c.Drop()
	})
}

func TestHold(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		free, came := make(chan struct{}), make(chan Held, 1)
		s.Hold(func(h Held) <-chan struct{} {
			if h.Op != jute.OpCreate || s.Exists("/held") { // which calls the server
				return nil
			}
			came <- h
			return free
		})
		c := dial(t, s)
		done := make(chan struct{})
		go func() {
			defer close(done)
			mustCreate(t, c, "/held", 0)
		}()
		if h := <-came; !strings.Contains(string(h.Body), "/held") {
			t.Errorf("the body is %q", h.Body)
		}
		other := dial(t, s)
		if _, _, code, err := other.Get("/", false); err != nil || code != 0 {
			t.Errorf("another connection: %v", err)
		}
		if s.Exists("/held") {
			t.Error("the request was applied before it was let go")
		}
		close(free)
		<-done
		if !s.Exists("/held") {
			t.Error("the request was not applied")
		}
		c.Close()
		other.Close()
	})
}

func TestSkew(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		s.Skew(-time.Hour)
		c := dial(t, s)
		mustCreate(t, c, "/a", 0)
		n, err := s.Get("/a")
		if err != nil {
			t.Fatal(err)
		}
		if ago := time.Since(time.UnixMilli(n.Stat.Mtime)).Round(time.Minute); ago != time.Hour {
			t.Errorf("the znode was changed %s ago, the clock is an hour late", ago)
		}
		c.Close()
	})
}
