package election

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/recipe"
)

func TestWatchedNodeDeletedOnReconnect(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		b := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "b"})
		synctest.Wait()
		w.RefuseDial("b:2181")
		w.DropConnections("b:2181")
		must(t, a.Resign(t.Context())) // b cannot hear of it
		time.Sleep(memTimeout / 4)
		w.Heal()
		<-b.terms
		must(t, a.stop())
		must(t, b.stop())
	})
}

// A server repeats its last number, so whoever gets it would lead beside the next.
func TestSequenceEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		must(t, w.Create("/e", nil))
		must(t, w.SetSequence("/e", math.MaxInt32-1))
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		for range 2 {
			err := New(Config{Name: "e", Path: "/e", ID: "b"}).Run(t.Context(), dialMem(t, w, "b"), nil)
			if !errors.Is(err, recipe.ErrSequence) {
				t.Errorf("got %v, want ErrSequence", err)
			}
		}
		must(t, a.stop())
	})
}

// A candidate that died while it waited wakes the one behind it, which goes on
// waiting for the leader.
func TestLoserOrphanDoesNotBlock(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		sb := dialMem(t, w, "b")
		b := run(t, sb, Config{Name: "e", Path: "/e", ID: "b"})
		synctest.Wait()
		c := run(t, dialMem(t, w, "c"), Config{Name: "e", Path: "/e", ID: "c"})
		synctest.Wait()
		w.ExpireSession(sb.ID())
		synctest.Wait()
		if len(c.terms) > 0 {
			t.Fatal("the third leads beside the first")
		}
		must(t, a.Resign(t.Context()))
		<-c.terms
		must(t, a.stop())
		_ = b.stop() // its session has expired
		must(t, c.stop())
	})
}
