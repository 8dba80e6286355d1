package memzk

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// dial opens a session over a pipe.
func dial(t *testing.T, s *Server, opts ...raw.Options) *raw.Conn {
	t.Helper()
	return dialAddr(t, s, "memzk:2181", opts...)
}

func dialAddr(t *testing.T, s *Server, addr string, opts ...raw.Options) *raw.Conn {
	t.Helper()
	nc, err := s.Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := raw.Open(nc, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustCreate(t *testing.T, c *raw.Conn, path string, flags int32) {
	t.Helper()
	if code, err := c.Create(path, []byte("x"), flags); code != 0 || err != nil {
		t.Fatalf("create %s: code %d, %v", path, code, err)
	}
}

func TestSessionExpiresInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		defer s.Close()
		c := dial(t, s, raw.Options{Timeout: 10 * time.Second})
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		c.Drop()
		time.Sleep(9 * time.Second)
		if !s.Exists("/e") {
			t.Error("the ephemeral was deleted before the timeout")
		}
		time.Sleep(4 * time.Second)
		if s.Exists("/e") {
			t.Error("the ephemeral outlived its session")
		}
		if got := len(s.SessionIDs()); got != 0 {
			t.Errorf("sessions: got %d, want 0", got)
		}
	})
}

func TestSessionIsTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		defer s.Close()
		c := dial(t, s)
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		again := raw.Options{SessionID: c.Session.SessionID, Password: c.Session.Password, LastZxidSeen: c.Zxid}
		c2 := dial(t, s, again)
		if got, want := c2.Session.SessionID, c.Session.SessionID; got != want {
			t.Errorf("session: got %x, want %x", got, want)
		}
		if _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
			t.Errorf("the old connection: got %v, want EOF", err)
		}
		c.Drop()
		c2.Close()
		if s.Exists("/e") {
			t.Error("the ephemeral outlived its session")
		}
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Open(nc, again); !errors.Is(err, raw.ErrRefused) {
			t.Errorf("a closed session: got %v, want %v", err, raw.ErrRefused)
		}
	})
}
