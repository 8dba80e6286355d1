package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// bareSession returns a session that nothing runs.
func bareSession(t testing.TB) *Session {
	t.Helper()
	cfg, err := Config{Servers: []string{"a:2181"}}.complete()
	if err != nil {
		t.Fatal(err)
	}
	return newSession(t.Context(), cfg)
}

func libraryConnect(size int) []byte {
	b := make([]byte, 4+size)
	binary.BigEndian.PutUint32(b, uint32(size))
	return b
}

// The library hangs for ever when a write fails at the wrong moment.
func TestWire_WriteNeverFails(t *testing.T) {
	client, server := net.Pipe()
	s := bareSession(t)
	w := newWire(s, client, "a:2181")
	s.dialed = w
	s.hosts.writers.Go(w.writeLoop)
	_ = server.Close()
	for range 3 {
		if n, err := w.Write(libraryConnect(44)); n != 48 || err != nil {
			t.Errorf("got %d %v", n, err)
		}
	}
	if _, err := w.Read(make([]byte, 4)); err == nil {
		t.Error("the reader did not learn that the connection ended")
	}
	_ = w.Close()
	s.hosts.writers.Wait()
}

// What is not one whole frame per Write is refused: a library that frames in
// another way must not be half understood.
func TestWire_OneFramePerWrite(t *testing.T) {
	ping := []byte{0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11}
	for name, b := range map[string][]byte{
		"empty": nil, "half": ping[:6], "two": append(append([]byte{}, ping...), ping...),
		"no handshake": ping, "short handshake": libraryConnect(40), "long handshake": libraryConnect(60),
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			defer server.Close()
			w := newWire(bareSession(t), client, "a:2181")
			if _, err := w.Write(b); err != nil {
				t.Error(err)
			}
			if w.life.Err() == nil {
				t.Error("connection goes on")
			}
		})
	}
}

// recorder keeps the frames that a client writes.
type recorder struct {
	net.Conn
	got chan []byte
}

func (r recorder) Write(b []byte) (int, error) {
	select {
	case r.got <- append([]byte(nil), b...):
	default:
	}
	return r.Conn.Write(b)
}

// record returns cfg with a dialer that puts what is written into the channel.
func record(cfg Config) (Config, chan []byte) {
	got := make(chan []byte, 1000)
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return recorder{c, got}, nil
	}
	return cfg, got
}

// All setWatches of a connection carry the zxid of its ConnectRequest, and come before
// any request. The library would put the newest zxid that it knows into each packet,
// and so skip events.
func TestWire_SetWatchesTellTheZxidOfTheHandshake(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg, got := record(memConfig(srv))
		s := dialMem(t, cfg)
		defer s.Close()
		for i := range 3000 { // more than one packet
			if _, _, _, err := s.ExistsW(t.Context(), fmt.Sprintf("/%0100d", i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := s.Create(t.Context(), "/n", nil, Persistent); err != nil {
			t.Fatal(err)
		}
		seen := s.Zxid()
		for i := range 100 {
			if err := srv.Create(fmt.Sprintf("/other%d", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		for len(got) > 0 {
			<-got
		}
		changed := s.Changed()
		srv.DropConnections()
		<-changed
		if _, _, err := s.Get(t.Context(), "/n"); err != nil {
			t.Fatal(err)
		}
		checkSetWatches(t, got, seen)
	})
}

func checkSetWatches(t *testing.T, got chan []byte, seen int64) {
	t.Helper()
	connect := <-got
	if z := int64(binary.BigEndian.Uint64(connect[8:])); z != seen {
		t.Errorf("handshake has zxid %d, want %d", z, seen)
	}
	packets := 0
	for {
		var b []byte
		select {
		case b = <-got:
		default:
			t.Fatal("no read came")
		}
		for len(b) > 0 {
			n := int(binary.BigEndian.Uint32(b)) + 4
			switch op := int32(binary.BigEndian.Uint32(b[8:])); op {
			case jute.OpSetWatches:
				packets++
				if z := int64(binary.BigEndian.Uint64(b[12:])); z != seen || n > setWatchesSize+200 {
					t.Errorf("packet of %d bytes has zxid %d, want %d", n, z, seen)
				}
			case jute.OpGetData:
				if packets < 3 {
					t.Errorf("read after %d packets", packets)
				}
				return
			}
			b = b[n:]
		}
	}
}

// The library asks for what it was last granted; we ask for what was configured.
func TestWire_AsksForTheConfiguredTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		cfg, got := record(memConfig(srv))
		cfg.Timeout = 25 * time.Second // the server grants at most 20
		s := dialMem(t, cfg)
		defer s.Close()
		if s.Timeout() != 20*time.Second {
			t.Errorf("negotiated %s, want 20 s", s.Timeout())
		}
		for range 2 {
			connect := <-got
			if ms := binary.BigEndian.Uint32(connect[16:]); ms != 25_000 {
				t.Errorf("asked for %d ms, want 25000", ms)
			}
			for len(got) > 0 {
				<-got
			}
			changed := s.Changed()
			srv.DropConnections()
			<-changed
			if err := s.sync(t); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestWire_HandshakeIsCapped(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		6 * time.Second: 2 * time.Second, 12 * time.Second: 3 * time.Second, time.Minute: 3 * time.Second,
	} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			srv.BlackHole(true)
			times := make(chan time.Time, 100)
			cfg := memConfig(srv)
			cfg.Timeout = timeout
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				times <- time.Now()
				return srv.Dial(ctx, network, addr)
			}
			_, stop := manage(t, cfg)
			first, second := <-times, <-times
			if took := second.Sub(first); took < want || took > want+maxBackoff {
				t.Errorf("T=%s: next server after %s, want %s and a pause", timeout, took, want)
			}
			stop()
			srv.Heal()
		})
	}
}

// Bytes of another connection, or of a peer that is not a ZooKeeper.
func TestWire_HostileFrames(t *testing.T) {
	for name, b := range map[string]string{
		"length below zero": "\xff\xff\xff\xff",
		"huge":              "\x7f\xff\xff\xff0123456789abcdef0123456789",
		"no header":         "\x00\x00\x00\x04abcd",
		"empty":             "\x00\x00\x00\x00",
		"unknown xid":       "\x00\x00\x00\x10\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00",
		"bad notification":  "\x00\x00\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x01\x02",
		"cut short":         "\x00\x00\x00\x10\xff",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, server := openWire(t)
				go func() {
					_, _ = server.Write([]byte(b))
					_ = server.Close()
				}()
				if _, err := w.Read(make([]byte, 100)); err == nil {
					t.Error("taken")
				}
				if w.life.Err() == nil {
					t.Error("connection goes on")
				}
				_ = w.Close()
				s.hosts.writers.Wait()
			})
		})
	}
}

// openWire returns a connection past its handshake, and the server's end.
func openWire(t testing.TB) (*Session, *wire, net.Conn) {
	t.Helper()
	client, server := net.Pipe()
	s := bareSession(t)
	w := newWire(s, client, "a:2181")
	s.dialed = w
	s.hosts.writers.Go(w.writeLoop)
	go func() { // the handshake
		_, _ = io.ReadFull(server, make([]byte, 48))
		r := jute.ConnectResponse{Timeout: 30_000, SessionID: 7, Password: make([]byte, 16)}
		e := jute.NewEncoder(nil)
		e.Put(r)
		_, _ = server.Write(withLength(e.Bytes()))
	}()
	_, _ = w.Write(libraryConnect(44))
	if _, err := io.ReadFull(w, make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	return s, w, server
}

// FuzzReplies feeds a connection with whatever a peer may send.
func FuzzReplies(f *testing.F) {
	head := "\xff\xff\xfc\x17\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00"
	f.Add(jute.OpGetData, []byte(head+"\x00\x00\x00\x01x"))
	f.Add(jute.OpGetChildren2, []byte(head+"\x7f\xff\xff\xff"))
	f.Add(jute.OpMulti, []byte(head+"\x00\x00\x00\x01\x00\x00\x00\x00\x00"))
	f.Add(jute.OpMultiRead, []byte(head+"\xff\xff\xff\xff\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		s, w, server := openWire(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.ReadFull(server, make([]byte, 12)) // the request
			_, _ = server.Write(withLength(body))
			_ = server.Close()
		}()
		watch, _ := s.watches.begin(nil, "/x", watchData.set())
		c := &call{op: op, frame: newFrame(op), done: make(chan struct{}), watch: watch}
		w.send(c)
		go func() { // the library, when it is done
			<-done
			<-c.done
			_ = w.Close()
		}()
		for err := error(nil); err == nil; {
			_, err = w.Read(make([]byte, 64))
		}
		<-c.done
		if c.err == nil {
			decodeAny(s, op, c)
		} else if !errors.Is(c.err, errLost) && !errors.Is(c.err, ErrTooLarge) {
			t.Error(c.err)
		}
		s.hosts.writers.Wait()
	})
}

// decodeAny decodes a reply as each operation would.
func decodeAny(s *Session, op int32, c *call) {
	d := jute.NewDecoder(c.body[jute.ReplyHeaderSize:])
	switch op {
	case jute.OpMulti:
		_, _ = s.decodeResults(d, []Op{CreateOp("/a", nil, Persistent), SetOp("/b", nil, 1), DeleteOp("/c", 1)})
	case jute.OpGetChildren2:
		_ = d.Strings()
	default:
		_ = d.Buffer()
	}
	var st Stat
	_ = d.Get(&st)
}

func TestHandoff_StateFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	st, err := openState(dir, thisHost())
	if err != nil {
		t.Fatal(err)
	}
	defer st.lock.Close()
	if err := st.save(bareSession(t), nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", e.Name(), info.Mode(), err)
		}
	}
}

// withLength returns a copy of a frame with its length before it.
func withLength(frame []byte) []byte { return setLength(append(make([]byte, 4), frame...)) }
