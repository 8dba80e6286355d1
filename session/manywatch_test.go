package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// manyZnodes makes n znodes below /many.
func manyZnodes(t *testing.T, srv *memzk.Server, n int) []string {
	t.Helper()
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("/many/k%03d", i)
		if err := srv.Create(paths[i], []byte("1")); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// GetManyW collects the results of EachManyW.
func (s *Session) GetManyW(ctx context.Context, paths []string, kids bool, limit int64) ([]WatchedResult, error) {
	out := make([]WatchedResult, len(paths))
	err := s.EachManyW(ctx, paths, kids, limit, func(i int, r WatchedResult) { out[i] = r })
	if err != nil {
		for i := range out {
			out[i].stop()
		}
	}
	return out, err
}

func TestGetManyW_ReadsAndWatches(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		paths := manyZnodes(t, srv, 600)
		s := dialMem(t, memConfig(srv))
		defer func() { _ = s.Close() }()
		results, err := s.GetManyW(t.Context(), append(paths, "/many/none"), true, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := results[600]; !errors.Is(got.Err, ErrNoNode) || got.Watch != nil || got.Kids {
			t.Errorf("missing znode: got %+v", got)
		}
		// Parts that grow by two thirds and more, with two requests each, and the read before them.
		if got := s.Requests(); got["multiRead"] > 15 || got["setWatches"] != got["multiRead"] || got["exists"] != 1 {
			t.Errorf("got requests %v", got)
		}
		queue := NewWatchQueue()
		for _, r := range results[:600] {
			if r.Err != nil || string(r.Data) != "1" {
				t.Fatalf("got %+v", r)
			}
			r.Watch.Join(queue)
		}
		if err := errors.Join(srv.Set(paths[7], []byte("2")), srv.Create(paths[9]+"/child", nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		rung := queue.Take()
		if len(rung) != 2 || rung[0] != (WatchEvent{Watch: results[7].Watch}) || rung[1] != (WatchEvent{Watch: results[9].Watch, Children: true}) {
			t.Fatalf("%d watches fired", len(rung))
		}
		if path := rung[1].Watch.Path(); path != paths[9] {
			t.Errorf("got %s", path)
		}
		if !results[7].Watch.Fired() || results[8].Watch.Fired() {
			t.Error("Fired and the queue disagree")
		}
	})
}

// What changes between the zxid that setWatches names and its arrival fires.
func TestGetManyW_ChangeInBetweenFires(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		paths := manyZnodes(t, srv, 10)
		s := dialMem(t, memConfig(srv))
		defer func() { _ = s.Close() }()
		// The connection is lost before setWatches arrives: everything is read again.
		lost := srv.LoseReply(jute.OpSetWatches, 1, true)
		results, err := s.GetManyW(t.Context(), paths, false, 0)
		if err != nil || !closed(lost) {
			t.Fatalf("got %v, lost %v", err, closed(lost))
		}
		if err := srv.Set(paths[3], []byte("2")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, r := range results {
			if got, want := r.Watch.Fired(), i == 3; got != want {
				t.Errorf("watch %d: fired %v, want %v", i, got, want)
			}
		}
	})
}

// A server without multiRead, or one that refuses setWatches, is asked one by one.
func TestGetManyW_Refused(t *testing.T) {
	for _, op := range []int32{jute.OpMultiRead, jute.OpSetWatches} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			paths := manyZnodes(t, srv, 10)
			srv.Refuse(op)
			s := dialMem(t, memConfig(srv))
			defer func() { _ = s.Close() }()
			results, err := s.GetManyW(t.Context(), paths, true, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := srv.Set(paths[3], []byte("2")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for i, r := range results {
				// A server that refuses setWatches at a reconnect makes watches fire for nothing.
				fired := r.Watch.Fired() || i != 3 && op == jute.OpSetWatches
				if r.Err != nil || string(r.Data) != "1" || r.Kids || fired != (i == 3 || op == jute.OpSetWatches) {
					t.Errorf("%s refused: %d: got %+v", jute.OpName(op), i, r)
				}
			}
		})
	}
}
