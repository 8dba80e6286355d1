package zktest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

func TestMain(m *testing.M) { RunMain(m) }

func TestSharedServerAndRoots(t *testing.T) {
	a, b := Root(t), Root(t)
	if a == b || !strings.HasPrefix(a, "/TestSharedServerAndRoots-") {
		t.Errorf("roots: got %q and %q", a, b)
	}
	c, err := raw.Dial(t.Context(), Shared(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, code, err := c.Get(a, false); code != 0 || err != nil {
		t.Errorf("read %s: code %d, %v", a, code, err)
	}
}

func TestServerLife(t *testing.T) {
	s := Start(t)
	addr := s.Addr()
	create := func(path string) {
		t.Helper()
		c, err := raw.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if code, err := c.Create(path, []byte("x"), jute.FlagPersistent); code != 0 || err != nil {
			t.Fatalf("create %s: code %d, %v", path, code, err)
		}
	}
	code := func(path string) int32 {
		t.Helper()
		c, err := raw.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _, code, err := c.Get(path, false)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	create("/kept")
	s.Stop(t)
	s.Start(t)
	if got, want := code("/kept"), jute.ErrCodeOK; got != want {
		t.Errorf("after stop and start: code %d, want %d", got, want)
	}
	s.Kill(t)
	s.Start(t)
	if got, want := code("/kept"), jute.ErrCodeOK; got != want {
		t.Errorf("after kill and start: code %d, want %d", got, want)
	}
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if answer, err := FourLetterWord(ctx, addr, "ruok"); err == nil {
		t.Errorf("a frozen server answered %q", answer)
	}
	s.Resume(t)
	if got, want := code("/kept"), jute.ErrCodeOK; got != want {
		t.Errorf("after resume: code %d, want %d", got, want)
	}
	s.Kill(t)
	s.Wipe(t)
	s.Start(t)
	if got, want := code("/kept"), jute.ErrCodeNoNode; got != want {
		t.Errorf("after wipe: code %d, want %d", got, want)
	}
	if got := s.Addr(); got != addr {
		t.Errorf("address: got %s, want %s", got, addr)
	}
}

func TestEnsembleElectsAnew(t *testing.T) {
	e := StartEnsemble(t, 3)
	if got, want := len(strings.Split(e.ConnectString(), ",")), 3; got != want {
		t.Fatalf("servers in %q: got %d, want %d", e.ConnectString(), got, want)
	}
	old := e.Leader(t)
	old.Kill(t)
	fresh := e.Leader(t)
	if fresh == old {
		t.Fatal("the killed server leads")
	}
	e.Restart(t, old)
	e.AwaitServing(t)
	if got, want := len(e.Followers(t)), 2; got != want {
		t.Errorf("followers: got %d, want %d", got, want)
	}
}

func TestProxy(t *testing.T) {
	p := NewProxy(t, Shared(t).Addr())
	c, err := raw.Dial(t.Context(), p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	p.CutOneWay(ServerToClient)
	if err = c.Send(1, jute.OpExists, raw.Body("/", false)); err != nil {
		t.Fatal(err)
	}
	p.Heal()
	if r, rerr := c.Receive(); rerr != nil || r.Xid != 1 {
		t.Errorf("after heal: xid %d, %v", r.Xid, rerr)
	}
	p.Delay(50 * time.Millisecond)
	began := time.Now()
	if _, _, _, err = c.Get("/", false); err != nil {
		t.Fatal(err)
	}
	if got, want := time.Since(began), 100*time.Millisecond; got < want {
		t.Errorf("a delayed request took %v, want at least %v", got, want)
	}
	p.Delay(0)
	p.Cut()
	if _, _, _, err = c.Get("/", false); err == nil {
		t.Error("a cut connection answers")
	}
	if c2, derr := raw.Dial(t.Context(), p.Addr()); derr == nil {
		c2.Drop()
		t.Error("a cut proxy lets a session be opened")
	}
	p.Heal()
	again, err := raw.Dial(t.Context(), p.Addr())
	if err != nil {
		t.Fatalf("after heal: %v", err)
	}
	again.Close()
	c.Drop()
}

func TestReservedPortsAreKept(t *testing.T) {
	r := reserve(t)
	defer r.release()
	if l, err := new(net.ListenConfig).Listen(t.Context(), "unix", r.lock.Addr().String()); err == nil {
		_ = l.Close()
		t.Errorf("port %d was reserved twice", r.port)
	} else if errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
