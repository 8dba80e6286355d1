package memzk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/raw"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// frame puts a length before b.
func frame(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func handshakeFrame() []byte {
	e := jute.NewEncoder(nil)
	e.Put(jute.ConnectRequest{Timeout: 30_000, Password: make([]byte, 16), ReadOnly: new(false)})
	return frame(e.Bytes())
}

// TestBadFramesEndTheirConnectionOnly sends what no client sends, over TCP.
func TestBadFramesEndTheirConnectionOnly(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bystander, err := raw.Dial(t.Context(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer bystander.Close()
	hello := handshakeFrame()
	for _, tt := range []struct {
		name string
		in   []byte
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"TLS", []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00}},
		{"negative length", []byte{0xff, 0xff, 0xff, 0xff}},
		{"too long", []byte{0x00, 0x10, 0x00, 0x00}},
		{"handshake too short", frame([]byte{1, 2, 3})},
		{"handshake with a long password", frame(append(make([]byte, 24), 0x7f, 0xff, 0xff, 0xff))},
		{"empty handshake", frame(nil)},
		{"too long after the handshake", append(bytes.Clone(hello), 0x7f, 0xff, 0xff, 0xff)},
		{"request without a header", append(bytes.Clone(hello), frame([]byte{0, 0, 0, 1})...)},
		{"empty request", append(bytes.Clone(hello), frame(nil)...)},
		{"unknown operation", append(bytes.Clone(hello), frame([]byte{0, 0, 0, 1, 0, 0, 0, 77})...)},
		{"second handshake", append(bytes.Clone(hello), hello...)},
		{"auth without a body", append(bytes.Clone(hello), frame([]byte{0xff, 0xff, 0xff, 0xfc, 0, 0, 0, 100})...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nc := dialTCP(t, addr.String())
			if _, err := nc.Write(tt.in); err != nil {
				t.Fatal(err)
			}
			_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, nc); isTimeout(err) {
				t.Error("the server did not close the connection")
			}
			if _, _, code, err := bystander.Get("/", false); err != nil || code != 0 {
				t.Errorf("another connection: code %d, %v", code, err)
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		nc := dialTCP(t, addr.String())
		if _, err := nc.Write(hello[:20]); err != nil {
			t.Fatal(err)
		}
		if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
		if b, err := io.ReadAll(nc); isTimeout(err) || len(b) > 0 {
			t.Errorf("got %d bytes, %v; want the end", len(b), err)
		}
	})
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func TestLargestFrame(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s)
		mustCreate(t, c, "/big", 0)
		if _, code, err := c.Set("/big", make([]byte, 1_048_000), -1); code != 0 || err != nil {
			t.Errorf("1,048,000 bytes: code %d, %v", code, err)
		}
		if _, _, err := c.Set("/big", make([]byte, 1<<20), -1); err == nil {
			t.Error("1,048,576 bytes went through")
		}
		c.Drop()
	})
}

func TestFourLetterWords(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := raw.Dial(t.Context(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mustCreate(t, c, "/e", jute.FlagEphemeral)
	if _, _, _, err := c.Get("/e", true); err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]string{
		"ruok": "imok", "isro": "rw", "srvr": "Mode: standalone", "stat": "Clients:", "cons": "sid=0x", "mntr": "zk_ephemerals_count\t1",
		"envi": "zookeeper.version=3.8.0", "conf": "tickTime=2000", "wchs": "1 connections watching 1 paths", "dump": "/e",
	} {
		got, err := zktest.FourLetterWord(t.Context(), addr.String(), word)
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, %v; want %q in it", word, got, err, want)
		}
	}
}

// kazoo reads the answer to a four-letter word with one call.
func TestFourLetterWord_OnePiece(t *testing.T) {
	s := New(Options{})
	t.Cleanup(s.Close)
	c, err := s.Dial(t.Context(), "tcp", "a:2181")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 100)
	if _, err := c.Write([]byte("ruok")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "imok" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
}

// TestSize holds 10,000 znodes and 1,000 sessions, each with an ephemeral and a
// watch, in less than 150 MB, clients included.
func TestSize(t *testing.T) {
	testhelp.InTurn(t, 2)
	const znodes, sessions, limit = 10_000, 1_000, 150 << 20
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		before := memory()
		for i := range znodes {
			if err := s.Create(fmt.Sprintf("/n/z-%d", i), make([]byte, 200)); err != nil {
				t.Fatal(err)
			}
		}
		conns := make([]*raw.Conn, 0, sessions)
		for i := range sessions {
			c := dial(t, s)
			mustCreate(t, c, fmt.Sprintf("/e-%d", i), jute.FlagEphemeral)
			if _, _, _, err := c.Get("/n", true); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		used := memory() - before
		t.Logf("%d znodes and %d sessions: %d MB", znodes, sessions, used>>20)
		if used > limit {
			t.Errorf("memory: got %d MB, want at most %d MB", used>>20, limit>>20)
		}
		for _, c := range conns {
			c.Drop()
		}
		synctest.Wait()
	})
}

// memory returns what heap and stacks take after a collection.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
