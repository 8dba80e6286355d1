package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// watching returns a book with n watches of data and children.
func watching(n int) *watchBook {
	b := &watchBook{met: noMetrics{}, t: watchTable{}}
	for i := range n {
		w, _ := b.begin(nil, fmt.Sprintf("/bench/tree/dir-%04d/key-%09d", i/100, i), watchData.set()|watchChild.set())
		w.armed = true
	}
	return b
}

// Setting all watches again takes memory for what is sent, and little besides.
func TestRenew_Allocations(t *testing.T) {
	b := watching(5000)
	requests, size := 0, 0
	send := func(c *call) bool {
		requests++
		size += len(c.frame)
		return true
	}
	if !b.renew(7, setWatchesSize, send) || requests != 1+size/(setWatchesSize+100) || size < 5000*2*38 {
		t.Errorf("%d requests of %d bytes", requests, size)
	}
	if got := testing.AllocsPerRun(5, func() { b.renew(7, setWatchesSize, send) }); got > 100 {
		t.Errorf("%.0f allocations, at most 100 are wanted", got)
	}
	if b.renew(7, setWatchesSize, func(*call) bool { return false }) {
		t.Error("a connection that has ended was set up")
	}
}

// BenchmarkRenew encodes what a reconnect sends for 20,000 znodes.
func BenchmarkRenew(b *testing.B) {
	book := watching(20000)
	b.ReportAllocs()
	for b.Loop() {
		book.renew(7, setWatchesSize, func(*call) bool { return true })
	}
}

// A server refuses to set the watches after a reconnect, for whatever reason. None of
// them is believed to be set: each fires, so that its reader looks again.
func TestSetWatches_RefusedAfterAReconnect(t *testing.T) {
	for _, code := range []int32{jute.ErrCodeUnimplemented, jute.ErrCodeMarshallingError, jute.ErrCodeQuotaExceeded} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			paths := manyZnodes(t, srv, 1)
			s := dialMem(t, memConfig(srv))
			defer func() { _ = s.Close() }()
			watches := map[string]*Watch{}
			_, _, data, err := s.GetW(t.Context(), paths[0])
			watches["data"] = data
			_, _, missing, e := s.ExistsW(t.Context(), "/missing")
			err, watches["exists"] = errors.Join(err, e), missing
			list, kids, e := s.ListW(t.Context(), "/many")
			err, watches["children"] = errors.Join(err, e), kids
			if err != nil || len(list.Names) != 1 {
				t.Fatal(list, err)
			}
			srv.RefuseWith(jute.OpSetWatches, code)
			srv.DropConnections()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, _, err := s.Exists(ctx, "/many"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for kind, w := range watches {
				if !w.Fired() {
					t.Errorf("%s: refused with %d, the watch is believed to be set", kind, code)
				}
			}
		})
	}
}

// TestSetWatches_SmallBuffer: a server that takes small requests only, or a client with a small
// limit, keeps the session and all of its watches over a reconnect.
func TestSetWatches_SmallBuffer(t *testing.T) {
	testhelp.InTurn(t, 2)
	for name, c := range map[string]struct{ server, client int }{
		"64 kB": {64 << 10, 0}, "4 kB": {4 << 10, 0}, "the client's": {4 << 10, 4 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleWith(t, memzk.Options{TickTime: time.Second, MaxFrame: c.server}, func(t *testing.T, srv *memzk.Server) {
				cfg := memConfig(srv)
				cfg.MaxFrame = c.client
				s := dialMem(t, cfg)
				defer func() { _ = s.Close() }()
				watches := make([]*Watch, 3000)
				for i := range watches {
					_, _, w, err := s.ExistsW(t.Context(), fmt.Sprintf("/%0300d", i))
					if err != nil {
						t.Fatal(err)
					}
					watches[i] = w
				}
				for range 2 {
					id, conns := s.ID(), s.Connection()
					srv.DropConnections()
					synctest.Wait()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					err := s.Sync(ctx, "/")
					if cancel(); err != nil || s.ID() != id {
						t.Fatalf("session %x after %x: %v", s.ID(), id, err)
					}
					if n := s.Connection() - conns; c.client != 0 && n != 1 {
						t.Errorf("%d connections, want 1: the limit is known", n)
					}
				}
				for i, w := range watches {
					if w.Fired() {
						t.Fatalf("watch %d fired", i)
					}
					if err := srv.Create(fmt.Sprintf("/%0300d", i), nil); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				for i, w := range watches {
					if !w.Fired() {
						t.Fatalf("watch %d did not fire", i)
					}
				}
			})
		})
	}
}
