package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

func realConfig(addr string) Config {
	return Config{Servers: []string{addr}, Timeout: 6 * time.Second}
}

// manageReal runs a manager on a real server.
func manageReal(t *testing.T, cfg Config) (*Manager, func()) {
	t.Helper()
	m, stop := manage(t, cfg)
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	return m, stop
}

func realSession(t *testing.T, m *Manager) *Session {
	t.Helper()
	s, err := m.Session(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-soon(t).Done():
		t.Fatalf("%s did not happen", what)
	}
}

// Thousands of watches, a server that is killed, requests in flight all the time,
// and every znode changed while the client is away: no event may be lost. The client
// library by itself loses some whenever a reply comes while it sets its watches.
func TestReal_WatchesSurviveARestart(t *testing.T) {
	t.Parallel()
	const rounds = 2
	n := testhelp.Rounds(1000, 3000)
	srv := zktest.Start(t)
	proxy := zktest.NewProxy(t, srv.Addr())
	cfg := realConfig(proxy.Addr())
	cfg.Timeout = 30 * time.Second
	m, _ := manageReal(t, cfg)
	s := realSession(t, m)
	other, _ := manageReal(t, Config{Servers: []string{srv.Addr()}, Timeout: 30 * time.Second})
	paths := make([]string, n)
	err := parallel(soon(t), n, 32, func(ctx context.Context, i int) error {
		paths[i] = fmt.Sprintf("/a-path-of-an-ordinary-length-for-a-watch-%05d", i)
		_, _, err := s.Create(ctx, paths[i], nil, Persistent)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	busy, rest := keepBusy(t, s)
	defer rest()
	for round := range rounds {
		watches := make([]*Watch, n)
		err := parallel(soon(t), n, 32, func(ctx context.Context, i int) (err error) {
			_, _, watches[i], err = s.GetW(ctx, paths[i])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		proxy.Cut()
		if round == 1 {
			srv.Kill(t)
			srv.Start(t)
		}
		o := realSession(t, other)
		err = parallel(soon(t), n, 32, func(ctx context.Context, i int) error {
			for {
				if _, err := o.Set(ctx, paths[i], []byte{byte(round)}, -1); !errors.Is(err, ErrUnknown) {
					return err
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		proxy.Heal()
		for i, w := range watches {
			await(t, "event "+paths[i], w.C())
		}
		if s.Context().Err() != nil {
			t.Fatal(context.Cause(s.Context()))
		}
	}
	select {
	case err := <-busy:
		t.Error(err)
	default:
	}
	if got := s.watches.len(); got != 0 {
		t.Errorf("%d watches left", got)
	}
}

// keepBusy has reads in flight until rest is called.
func keepBusy(t *testing.T, s *Session) (failed <-chan error, rest func()) {
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, _, err := s.Get(ctx, "/"); err != nil && ctx.Err() == nil {
					errs <- err
					return
				}
			}
		})
	}
	return errs, func() { cancel(); wg.Wait() }
}

func TestReal_FrozenServer(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own")
	t.Parallel()
	bad := zktest.Start(t)
	s := dialReal(t, realConfig(bad.Addr()))
	bad.Freeze(t)
	held, cancel := s.WithLease(t.Context())
	defer cancel()
	await(t, "end of the lease", held.Done())
	if !errors.Is(context.Cause(held), ErrSuspended) {
		t.Errorf("cause %v", context.Cause(held))
	}
	bad.Resume(t)
	// The server may have expired the session while it slept, or not.
	if err := s.Sync(soon(t), "/"); err != nil && !errors.Is(err, ErrExpired) {
		t.Error(err)
	}
}

func TestReal_EmptyServer(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own")
	t.Parallel()
	srv := zktest.Start(t)
	cfg := realConfig(srv.Addr())
	cfg.Timeout = 4 * time.Second
	m, _ := manageReal(t, cfg)
	s := realSession(t, m)
	for i := range 20 {
		if _, _, err := s.Create(soon(t), fmt.Sprintf("/n%d", i), nil, Persistent); err != nil {
			t.Fatal(err)
		}
	}
	srv.Stop(t)
	srv.Wipe(t)
	srv.Start(t)
	await(t, "end of the session", s.Done())
	if !errors.Is(context.Cause(s.Context()), ErrExpired) {
		t.Errorf("cause %v", context.Cause(s.Context()))
	}
	if _, _, err := realSession(t, m).Create(soon(t), "/again", nil, Ephemeral); err != nil {
		t.Error(err)
	}
}

func TestReal_RestartKeepsTheSession(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	srv := zktest.Start(t)
	cfg := realConfig(srv.Addr())
	cfg.Timeout = 30 * time.Second
	s := dialReal(t, cfg)
	if _, _, err := s.Create(soon(t), "/e", nil, Ephemeral); err != nil {
		t.Fatal(err)
	}
	srv.Kill(t)
	srv.Start(t)
	st, ok, err := s.Exists(soon(t), "/e")
	if err != nil || !ok || st.EphemeralOwner != s.ID() {
		t.Errorf("%v %v %+v", ok, err, st)
	}
}

func TestReal_LargestRequest(t *testing.T) {
	t.Parallel()
	s := dialReal(t, Config{})
	path := "/largest"
	if _, _, err := s.Create(soon(t), path, nil, Persistent); err != nil {
		t.Fatal(err)
	}
	room := DefaultMaxFrame - (4 + 4 + 4 + len(full(s.cfg.Chroot, path)) + 4 + 4)
	if _, err := s.Set(soon(t), path, make([]byte, room), -1); err != nil {
		t.Errorf("largest: %v", err)
	}
	if _, err := s.Set(soon(t), path, make([]byte, room+1), -1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("larger: %v", err)
	}
	if data, _, err := s.Get(soon(t), path); err != nil || len(data) != room {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if s.Connection() != 1 {
		t.Errorf("%d connections", s.Connection())
	}
}

func TestReal_DigestAuthAndACL(t *testing.T) {
	t.Parallel()
	srv, root := zktest.Shared(t).Addr(), zktest.Root(t)
	cfg := Config{Servers: []string{srv}, Chroot: root, Auth: []Auth{{"digest", []byte("ann:secret")}, {"digest", []byte("bob:other")}}}
	s := dialReal(t, cfg)
	if _, _, err := s.Create(soon(t), "/mine", []byte("x"), Persistent); err != nil {
		t.Fatal(err)
	}
	acl, _, err := s.GetACL(soon(t), "/mine")
	if err != nil || len(acl) != 3 || FormatACL(acl[0]) != "world:anyone:r" {
		t.Errorf("acl %v %v", acl, err)
	}
	cfg.Auth = nil
	other := dialReal(t, cfg)
	if _, _, err := other.Get(soon(t), "/mine"); err != nil {
		t.Error(err)
	}
	if _, err := other.Set(soon(t), "/mine", nil, -1); !errors.Is(err, ErrNoAuth) || ActionFor(err) != GiveUp {
		t.Errorf("got %v, want ErrNoAuth", err)
	}
	if _, err := s.SetACL(soon(t), "/mine", OpenACL(), 0); err != nil {
		t.Error(err)
	}
	if _, err := other.Set(soon(t), "/mine", nil, -1); err != nil {
		t.Error(err)
	}
}

// Two processes, one after the other, on a real server, under the eyes of a third.
func TestReal_Handoff(t *testing.T) {
	t.Parallel()
	srv, root, dir := zktest.Shared(t).Addr(), zktest.Root(t), t.TempDir()
	cfg := Config{Servers: []string{srv}, Chroot: root, Timeout: 10 * time.Second, StateDir: dir}
	watcher := dialReal(t, Config{Servers: []string{srv}, Chroot: root})
	m, stop := manageReal(t, cfg)
	s := realSession(t, m)
	id := s.ID()
	if _, _, err := s.Create(soon(t), "/member", []byte("x"), Ephemeral); err != nil {
		t.Fatal(err)
	}
	_, _, data, err := watcher.GetW(soon(t), "/member")
	if err != nil {
		t.Fatal(err)
	}
	_, _, list, err := watcher.ChildrenW(soon(t), "/")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		m.HandOver()
		stop()
		m, stop = manageReal(t, cfg)
		s = realSession(t, m)
		if s.ID() != id || !s.Resumed() {
			t.Fatalf("got session %x resumed %v, want %x", s.ID(), s.Resumed(), id)
		}
		own, err := s.Ephemerals(soon(t), "/")
		if err != nil || len(own) != 1 || own[0] != "/member" {
			t.Fatalf("owns %v, %v", own, err)
		}
	}
	if err := watcher.Sync(soon(t), "/"); err != nil {
		t.Fatal(err)
	}
	if closed(data.C()) || closed(list.C()) {
		t.Error("the watcher saw an event")
	}
	stop() // a leave
	await(t, "deletion of the member", data.C())
}

func TestReal_Unimplemented(t *testing.T) {
	t.Parallel()
	s := dialReal(t, Config{})
	r := &request{op: 99, path: "/", frame: newFrame(99)}
	if _, err := s.exchange(soon(t), r); !errors.Is(err, ErrUnimplemented) {
		t.Errorf("got %v, want ErrUnimplemented", err)
	}
	if _, _, err := s.Get(soon(t), "/"); err != nil { // the server closed that connection
		t.Error(err)
	}
}
