package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// The reply of a create is lost, and the server that is asked next has not heard
// of the znode yet: it is made to catch up, and nothing is created twice.
func TestCreateProtected_LaggingServer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Servers = []string{"a:2181", "b:2181"}
		s := dialMem(t, cfg)
		defer s.Close()
		other := "a:2181"
		if s.Server() == other {
			other = "b:2181"
		}
		srv.Lag(other)
		srv.LoseReply(jute.OpCreate2, 1, false)
		path, _, err := s.CreateProtected(t.Context(), "/", "x-", nil, EphemeralSequential)
		if err != nil {
			t.Fatal(err)
		}
		if s.Server() != other {
			t.Fatalf("connected to %s, want the server that lags", s.Server())
		}
		var made []string
		for p := range srv.Tree() {
			if strings.Contains(p, "x-") {
				made = append(made, p)
			}
		}
		if len(made) != 1 || made[0] != path {
			t.Errorf("there are %v, want %s alone", made, path)
		}
	})
}

// The reply of a create is lost. Meanwhile another session makes a znode whose name
// begins with the same text. The create finds its own znode.
func TestCreateProtected_ForeignZnodeOfTheSamePrefix(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		s := dialMem(t, cfg)
		defer s.Close()
		cfg.Servers = []string{"other:2181"}
		other := dialMem(t, cfg)
		defer other.Close()
		if err := errors.Join(srv.Create("/d", nil), srv.SetSequence("/d", 5)); err != nil {
			t.Fatal(err)
		}
		srv.LoseReply(jute.OpCreate2, 1, false)
		var once sync.Once
		srv.Hold(func(h memzk.Held) <-chan struct{} {
			var came chan struct{}
			if h.Op == jute.OpSync {
				once.Do(func() {
					came = make(chan struct{})
					go func() {
						defer close(came)
						names, _, err := other.Children(t.Context(), "/d")
						if err != nil || len(names) != 1 {
							t.Errorf("got %v, %v", names, err)
							return
						}
						if _, _, err := other.Create(t.Context(), "/d/"+strings.TrimSuffix(names[0], "5")+"0", nil, Ephemeral); err != nil {
							t.Error(err)
						}
					}()
				})
			}
			return came
		})
		path, stat, err := s.CreateProtected(t.Context(), "/d", "x-", nil, EphemeralSequential)
		if err != nil || stat.EphemeralOwner != s.ID() || !strings.HasSuffix(path, "5") {
			t.Errorf("got %s of session %s, %v", path, hexID(stat.EphemeralOwner), err)
		}
	})
}

// strangeConn says that the znodes of its session belong to another one.
type strangeConn struct {
	net.Conn

	session []byte
	rest    []byte
}

func (c *strangeConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, frame); err != nil {
			return 0, err
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(c.Conn, frame[4:]); err != nil {
			return 0, err
		}
		if c.session == nil { // The answer to the handshake: version, timeout, session.
			c.session = bytes.Clone(frame[12:20])
		} else {
			frame = bytes.ReplaceAll(frame, c.session, []byte("\x00another"))
		}
		c.rest = frame
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// A proxy runs the create of an ephemeral znode in another session. The caller does not
// get it, and it does not stay.
func TestCreateProtected_OfAnotherSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg := memConfig(srv)
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := srv.Dial(ctx, network, addr)
			return &strangeConn{Conn: conn}, err
		}
		s := dialMem(t, cfg)
		defer s.Close()
		if path, _, err := s.CreateProtected(t.Context(), "/", "x-", nil, EphemeralSequential); !errors.Is(err, ErrExpired) {
			t.Errorf("got %s, %v", path, err)
		}
		if path, _, err := s.CreateProtected(t.Context(), "/", "p-", nil, PersistentSequential); err != nil {
			t.Errorf("got %s, %v", path, err)
		}
		for p := range srv.Tree() {
			if strings.Contains(p, "x-") {
				t.Errorf("left: %s", p)
			}
		}
	})
}
