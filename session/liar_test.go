package session

import (
	"bytes"
	"context"
	"errors"
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

// TestLiar_Greeting: a server that lies in its answer to the handshake neither holds the
// client for days, nor makes it keep what it says.
func TestLiar_Greeting(t *testing.T) {
	testhelp.InTurn(t, 2)
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
					return &memzk.Liar{Conn: c, Greet: lie, Honest: &honest}, err
				}
				m, stop := manage(t, cfg)
				defer stop()
				runtime.GC() // what earlier tests have left
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
		return &memzk.Liar{Conn: c, Rand: rand.New(rand.NewPCG(rng.Uint64(), 3)), Honest: &honest}, nil
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

// renamer is a connection whose server shows other names than the tree has, of the same
// length.
type renamer struct{ net.Conn }

var impossible = map[string]string{
	"evil0___": "\x1b]0;pwn\x07", "evil1___": "../../xx", "evil2___": "a\nb\rc\x1b[2", "evil3___": "\xff\xfe\x9b31mxy",
	"evil4___": "/etc/pas", "evil5___": "//..//..", "evil6___": "a\x00b\x7f\u0085xy", "evil7___": "\ue000\u0090abc",
}

func (c renamer) Read(p []byte) (int, error) {
	n, err := io.ReadAtLeast(c.Conn, p, 1)
	for name, lie := range impossible {
		copy(p, bytes.ReplaceAll(p[:n], []byte(name), []byte(lie)))
	}
	return n, err
}

// A server that lists names that no znode can have lies: the session leaves them out, so that
// nobody prints them or builds a path from them. A create with such a path is no success.
func TestLiar_ImpossibleNames(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		for name := range impossible {
			if len(name) != len(impossible[name]) {
				t.Fatalf("%q has another length", impossible[name])
			}
			if err := srv.Create("/d/"+name, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := srv.Create("/d/good", nil); err != nil {
			t.Fatal(err)
		}
		s := dialMem(t, Config{Servers: []string{"a:2181"}, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := srv.Dial(ctx, network, addr)
			return renamer{c}, err
		}})
		defer s.Close()
		want := []string{"good"}
		names, _, err := s.Children(t.Context(), "/d")
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("children %q, %v", names, err)
		}
		all, err := s.GetChildren(t.Context(), "/d")
		if err != nil || len(all) != 1 {
			t.Errorf("read children: %v, %v", all, err)
		}
		lists, err := s.ChildrenMany(t.Context(), []string{"/d", "/"})
		if err != nil || !slices.Equal(lists[0].Names, want) {
			t.Errorf("many: %q, %v", lists[0].Names, err)
		}
		for _, mode := range []Mode{Ephemeral, EphemeralSequential} {
			if path, _, err := s.Create(t.Context(), "/evil1___", nil, mode); err == nil {
				t.Errorf("created %q", path)
			}
			results, err := s.Multi(t.Context(), CheckOp("/d", -1), CreateOp("/evil2___", nil, mode))
			if !errors.Is(err, ErrUnknown) {
				t.Errorf("created %v in a multi: %v", results, err)
			}
		}
	})
}
