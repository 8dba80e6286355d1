package session

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// A znode with a TTL goes when no client writes it, whether a create or a multi made it.
func TestTTL_ZnodesGoWhenNobodyWritesThem(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		ctx := t.Context()
		_, st, err := s.Create(ctx, "/one", []byte("x"), PersistentTTL(90*time.Second))
		if err != nil || st.EphemeralOwner != 0 {
			t.Fatalf("create: %+v, %v", st, err)
		}
		path, _, err := s.Create(ctx, "/seq-", nil, PersistentSequentialTTL(90*time.Second))
		if err != nil || !strings.HasPrefix(path, "/seq-0") {
			t.Fatalf("create: %q, %v", path, err)
		}
		results, err := s.Multi(ctx, CreateOp("/multi", []byte("abc"), PersistentTTL(90*time.Second)))
		if err != nil || results[0].Stat.Czxid == 0 {
			t.Fatalf("multi: %+v, %v", results, err)
		}
		for range 10 {
			time.Sleep(time.Minute)
			if _, err := s.Set(ctx, "/one", nil, -1); err != nil {
				t.Fatalf("a znode that is written went: %v", err)
			}
		}
		if srv.Exists(path) || srv.Exists("/multi") {
			t.Error("a znode without writes stands after ten minutes")
		}
	})
}

func TestTTL_OutOfRangeAndSwitchedOff(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		for _, ttl := range []time.Duration{0, -time.Second, time.Microsecond, (1 << 40) * time.Millisecond} {
			_, _, err := s.Create(t.Context(), "/x", nil, PersistentTTL(ttl))
			if !errors.Is(err, ErrBadArguments) || !strings.Contains(err.Error(), "TTL") {
				t.Errorf("%v: got %v", ttl, err)
			}
			if _, err = s.Multi(t.Context(), CreateOp("/x", nil, PersistentSequentialTTL(ttl))); !errors.Is(err, ErrBadArguments) {
				t.Errorf("%v in a multi: got %v", ttl, err)
			}
		}
		if ttl := PersistentTTL(time.Hour); ttl.TTL() != time.Hour || ttl.Sequential() || ttl.Ephemeral() || !PersistentSequentialTTL(time.Hour).Sequential() {
			t.Errorf("%v", ttl)
		}
	})
	bubble(t, func(t *testing.T, _ *memzk.Server) {
		srv := memzk.New(memzk.Options{TickTime: time.Second, NoExtendedTypes: true})
		defer srv.Close()
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		if _, _, err := s.Create(t.Context(), "/x", nil, PersistentTTL(time.Minute)); !errors.Is(err, ErrUnimplemented) {
			t.Errorf("switched off: got %v", err)
		}
	})
}

// A real server takes the TTL as we send it.
func TestTTL_RealServer(t *testing.T) {
	s, ctx := dialReal(t, Config{}), soon(t)
	if err := s.CreateParents(ctx, "/a/b"); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{PersistentTTL(time.Hour), PersistentSequentialTTL(time.Hour)} {
		path, st, err := s.Create(ctx, "/a/b", []byte("x"), mode)
		if err != nil || st.EphemeralOwner != 0 || st.DataLength != 1 {
			t.Errorf("create: %q %+v %v", path, st, err)
		}
		if _, err := s.Multi(ctx, DeleteOp(path, 0), CreateOp("/a/b", []byte("y"), mode)); err != nil {
			t.Errorf("multi: %v", err)
		}
	}
}
