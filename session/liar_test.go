package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// liar is a connection whose server lies now and then: wrong lengths, giant counts, wrong
// xids, replies to requests that nobody made, events without end, half frames, and
// another session id.
type liar struct {
	net.Conn
	rng    *rand.Rand // of one goroutine: the reader's
	honest *atomic.Bool
	left   []byte // to be read
	frames int

	greet func(*jute.ConnectResponse) // the only lie, when not nil
}

// Read implements net.Conn.
func (l *liar) Read(p []byte) (int, error) {
	if len(l.left) == 0 {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(l.Conn, frame); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(frame)
		if length > 1<<24 { // the text that answers a four-letter word
			return copy(p, frame), nil
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(l.Conn, body); err != nil {
			return 0, err
		}
		l.frames++
		l.left = slices.Concat(frame, body)
		switch {
		case l.honest.Load():
		case l.greet != nil && l.frames == 1:
			var r jute.ConnectResponse
			_ = jute.NewDecoder(body).Get(&r)
			l.greet(&r)
			l.left = packet(r)
		case l.greet == nil && l.rng.IntN(4) == 0:
			l.left = l.lie(l.left)
		}
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

func (l *liar) lie(f []byte) []byte {
	number := func(at int, n uint32) {
		if at+4 <= len(f) {
			binary.BigEndian.PutUint32(f[at:], n)
		}
	}
	unasked := func(xid uint32, body int) []byte {
		g := make([]byte, 4+16+body)
		binary.BigEndian.PutUint32(g, uint32(16+body))
		binary.BigEndian.PutUint32(g[4:], xid)
		return g
	}
	numbers := []uint32{0, 1, 7, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, l.rng.Uint32()}
	n := numbers[l.rng.IntN(len(numbers))]
	switch l.rng.IntN(8) {
	case 0:
		number(0, n) // a wrong length
	case 1:
		number(4*l.rng.IntN(max(len(f)/4, 1)), n) // a giant count, another error, another zxid
	case 2:
		number(4, n) // a wrong xid
	case 3:
		return append(unasked(n, l.rng.IntN(64)), f...)
	case 4:
		for range l.rng.IntN(200) { // events
			e := unasked(1<<32-1, 4+4+4+2)
			binary.BigEndian.PutUint32(e[20:], uint32(1+l.rng.IntN(5)))
			binary.BigEndian.PutUint32(e[24:], 3)
			binary.BigEndian.PutUint32(e[28:], 2)
			copy(e[32:], "/w")
			f = append(f, e...)
		}
	case 5:
		return f[:l.rng.IntN(len(f))] // half a frame: what comes next is taken for its rest
	case 6:
		return append(f, f...)
	case 7:
		if l.frames == 1 && len(f) >= 20 {
			binary.BigEndian.PutUint64(f[12:], l.rng.Uint64()) // another session
		}
	}
	return f
}

// TestLiar_Greeting: a server that lies in its answer to the handshake neither holds the
// client for days, nor makes it keep what it says.
func TestLiar_Greeting(t *testing.T) {
	for name, lie := range map[string]func(*jute.ConnectResponse){
		"giant timeout":  func(r *jute.ConnectResponse) { r.Timeout = 1<<31 - 1 },
		"tiny timeout":   func(r *jute.ConnectResponse) { r.Timeout = 1 },
		"no password":    func(r *jute.ConnectResponse) { r.Password = nil },
		"giant password": func(r *jute.ConnectResponse) { r.Password = make([]byte, 8<<20) },
		"other session":  func(r *jute.ConnectResponse) { r.SessionID++ },
		"other protocol": func(r *jute.ConnectResponse) { r.ProtocolVersion = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *memzk.Server) {
				if err := srv.Create("/w", nil); err != nil {
					t.Fatal(err)
				}
				var honest atomic.Bool
				cfg := memConfig(srv)
				dial := cfg.Dial
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					c, err := dial(ctx, network, address)
					return &liar{Conn: c, greet: lie, honest: &honest}, err
				}
				m, stop := manage(t, cfg)
				defer stop()
				var most usage
				for range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					s, err := m.Session(ctx)
					cancel()
					if err == nil {
						s.mu.Lock()
						length := len(s.password)
						s.mu.Unlock()
						if !cfg.mayGrant(s.Timeout()) || length > passwordLength {
							t.Fatalf("a timeout of %s and a password of %d bytes are believed", s.Timeout(), length)
						}
					}
					time.Sleep(100 * time.Millisecond)
					most.look()
				}
				if n := srv.Requests()[jute.OpName(jute.OpPing)]; n > 20 || most.heap > 64<<20 {
					t.Errorf("%d pings, %d MB of heap", n, most.heap>>20)
				}
				honest.Store(true)
				srv.DropConnections()
				recovered(t, m, func(ctx context.Context, s *Session) error {
					_, err := s.Set(ctx, "/w", []byte("the end"), -1)
					return err
				})
			})
		})
	}
}

// TestLiar: whatever a server says, memory and goroutines stay bounded, and once it is
// honest again the client sees what there is and can write.
func TestLiar(t *testing.T) {
	var most usage
	runtime.GC() // What other tests have left is not the client's.
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		before := runtime.NumGoroutine()
		synctest.Test(t, func(t *testing.T) { lieTo(t, seed, &most) })
		n := runtime.NumGoroutine()
		for end := time.Now().Add(10 * time.Second); n > before+20 && time.Now().Before(end); n = runtime.NumGoroutine() {
			runtime.Gosched() // those that have returned still count for a moment
		}
		if n > before+20 {
			t.Errorf("%d goroutines, %d before", n, before)
		}
	})
	t.Logf("at most %d MB of heap, and %d goroutines", most.heap>>20, most.goroutines)
	if most.heap > 64<<20 || most.goroutines > 200 {
		t.Error("a server that lies makes the client keep too much")
	}
}

// usage is the most that was in use at once.
type usage struct{ heap, goroutines uint64 }

// look takes a sample of what the last collection of garbage has left.
func (u *usage) look() {
	list := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"}}
	metrics.Read(list)
	u.heap, u.goroutines = max(u.heap, list[0].Value.Uint64()), max(u.goroutines, list[1].Value.Uint64())
}

func lieTo(t *testing.T, seed uint64, most *usage) {
	srv := memzk.New(memzk.Options{TickTime: time.Second})
	t.Cleanup(srv.Close)
	for _, path := range []string{"/w", "/c/a", "/c/b"} {
		if err := srv.Create(path, []byte("0")); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	var honest atomic.Bool
	var mu sync.Mutex // guards rng
	cfg := memConfig(srv)
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		return &liar{Conn: c, rng: rand.New(rand.NewPCG(rng.Uint64(), 3)), honest: &honest}, nil
	}
	mgr, stop := manage(t, cfg)
	defer stop()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if s, err := mgr.Session(ctx); err == nil {
			_, _, w, _ := s.GetW(ctx, "/w")
			_, _, kids, _ := s.ChildrenW(ctx, "/c")
			_, _ = s.Set(ctx, "/c/a", []byte("1"), -1)
			_, _ = s.GetMany(ctx, []string{"/c/a", "/c/b"})
			w.Stop()
			kids.Stop()
		}
		cancel()
		most.look()
		time.Sleep(100 * time.Millisecond)
	}
	honest.Store(true)
	if err := srv.Set("/w", []byte("the end")); err != nil {
		t.Fatal(err)
	}
	recovered(t, mgr, func(ctx context.Context, s *Session) error {
		data, _, err := s.Get(ctx, "/w")
		if err == nil && string(data) != "the end" {
			err = fmt.Errorf("/w has %q", data)
		}
		if err == nil {
			_, err = s.Set(ctx, "/c/b", []byte("2"), -1)
		}
		return err
	})
	if string(srv.Tree()["/c/b"].Data) != "2" {
		t.Error("a write is lost")
	}
}

// recovered waits until do succeeds on a session.
func recovered(t *testing.T, m *Manager, do func(context.Context, *Session) error) {
	t.Helper()
	var last error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		s, err := m.Session(ctx)
		if err == nil {
			err = do(ctx, s)
		}
		cancel()
		if last = err; err == nil {
			return
		}
	}
	t.Fatalf("no recovery: %v; %+v", last, m.Status())
}
