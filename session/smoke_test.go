package session

import (
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

func dialReal(t *testing.T, cfg Config) *Session {
	t.Helper()
	if cfg.Servers == nil {
		cfg.Servers = []string{zktest.Shared(t).Addr()}
		cfg.Chroot = zktest.Root(t)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	s, err := Dial(soon(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSession_Operations(t *testing.T) {
	s, ctx := dialReal(t, Config{}), soon(t)
	if err := s.CreateParents(ctx, "/a/b/c"); err != nil {
		t.Fatal(err)
	}
	_, ok, w, err := s.ExistsW(ctx, "/a/b/c")
	if err != nil || ok {
		t.Fatalf("exists: %v %v", ok, err)
	}
	p, st, err := s.Create(ctx, "/a/b/c", []byte("x"), Persistent)
	if err != nil || p != "/a/b/c" || st.Czxid == 0 {
		t.Fatalf("create: %q %+v %v", p, st, err)
	}
	select {
	case <-w.C():
	default:
		t.Fatal("watch not closed before the reply of the create")
	}
	data, st2, w, err := s.GetW(ctx, "/a/b/c")
	if err != nil || string(data) != "x" || st2.Czxid != st.Czxid {
		t.Fatalf("get: %q %v", data, err)
	}
	if _, err := s.Set(ctx, "/a/b/c", []byte("y"), 5); !errors.Is(err, ErrBadVersion) {
		t.Fatalf("got %v, want ErrBadVersion", err)
	}
	if _, err := s.Set(ctx, "/a/b/c", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	<-w.C()
	names, _, w, err := s.ChildrenW(ctx, "/a/b")
	if err != nil || len(names) != 1 {
		t.Fatalf("children: %v %v", names, err)
	}
	_, err = s.Multi(ctx, CreateOp("/a/b/d", nil, Persistent), CheckOp("/a/b/c", 7))
	me, isMulti := errors.AsType[*MultiError](err)
	if !isMulti || me.Index != 1 || !errors.Is(err, ErrBadVersion) {
		t.Fatalf("multi: %v", err)
	}
	res, err := s.Multi(ctx, CreateOp("/a/b/d", nil, EphemeralSequential), SetOp("/a/b/c", []byte("z"), 1),
		CreateOp("/a/b/k", nil, Container), DeleteOp("/a/b/c", 2))
	if err != nil || res[0].Path != "/a/b/d0000000001" || res[0].Stat.EphemeralOwner != s.ID() || res[0].Stat.Czxid != res[1].Stat.Mzxid || res[1].Stat.Version != 2 {
		t.Fatalf("multi: %+v %v", res, err)
	}
	<-w.C()
	many, err := s.GetMany(ctx, []string{"/a/b/d0000000001", "/a/no", "/a/b/k"})
	if err != nil || many[0].Err != nil || !errors.Is(many[1].Err, ErrNoNode) || many[2].Err != nil {
		t.Fatalf("many: %+v %v", many, err)
	}
	own, err := s.Ephemerals(ctx, "/")
	if err != nil || len(own) != 1 || own[0] != "/a/b/d0000000001" {
		t.Fatalf("ephemerals: %v %v", own, err)
	}
	pp, _, err := s.CreateProtected(ctx, "/a", "lock-", nil, EphemeralSequential)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, pp, -1); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	t.Log(s.Requests())
}
