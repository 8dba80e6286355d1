package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

const memTimeout = 12 * time.Second // in virtual time

// bubble runs f with an in-memory ZooKeeper in virtual time.
func bubble(t *testing.T, f func(t *testing.T, w *memzk.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		t.Cleanup(w.Close)
		f(t, w)
		w.ClearFaults()
	})
}

func dialMem(t *testing.T, w *memzk.Server, name string) *session.Session {
	t.Helper()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{name + ":2181"}, Timeout: memTimeout, Dial: w.Dial})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func requests(w *memzk.Server) uint64 {
	var n uint64
	for op, count := range w.Requests() {
		if op != "ping" {
			n += count
		}
	}
	return n
}

// A leader's departure among a thousand candidates wakes one of them, which
// leads after one request: a list.
func TestFailover_WakesOne(t *testing.T) {
	testhelp.InTurn(t, 2)
	const candidates = 1000
	bubble(t, func(t *testing.T, w *memzk.Server) {
		s := dialMem(t, w, "a")
		first := run(t, s, Config{Name: "e", Path: "/e", ID: "first"})
		<-first.terms
		ctx, cancel := context.WithCancel(t.Context())
		terms := make(chan Term)
		var wg sync.WaitGroup
		for i := range candidates {
			c := New(Config{Name: "e", Path: "/e", ID: strconv.Itoa(i), Lead: func(ctx context.Context, term Term) {
				select { // while all of them end, another one may lead for a moment
				case terms <- term:
					<-ctx.Done()
				case <-ctx.Done():
				}
			}})
			wg.Go(func() { _ = c.Run(ctx, s, nil) })
			synctest.Wait()
		}
		w.ResetRequests()
		must(t, first.Resign(t.Context()))
		<-terms
		synctest.Wait()
		if got := requests(w); got != 2 { // the delete, and the list
			t.Errorf("requests of a failover among %d: got %d (%v), want 2", candidates, got, w.Requests())
		}
		must(t, first.stop())
		cancel()
		wg.Wait()
	})
}

func TestMissedCreateReply(t *testing.T) {
	for _, before := range []bool{true, false} {
		for _, dialect := range []string{recipe.Curator, recipe.Kazoo} {
			bubble(t, func(t *testing.T, w *memzk.Server) {
				must(t, w.Create("/e", nil))
				s := dialMem(t, w, "a")
				w.LoseReply(jute.OpCreate2, 1, before)
				r := run(t, s, Config{Name: "e", Path: "/e", ID: "a", Dialect: dialect})
				<-r.terms
				if names, err := w.Children("/e"); len(names) != 1 || err != nil {
					t.Errorf("%s: candidates after a lost reply: got %v, want one", dialect, names)
				}
				must(t, r.Resign(t.Context()))
				if names, _ := w.Children("/e"); len(names) != 0 {
					t.Errorf("%s: candidates after resigning: got %v", dialect, names)
				}
				must(t, r.stop())
			})
		}
	}
}

func TestOneWayPartition(t *testing.T) {
	for _, cut := range []func(*memzk.Server, ...string){(*memzk.Server).CutClientToServer, (*memzk.Server).Partition} {
		bubble(t, func(t *testing.T, w *memzk.Server) {
			a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
			first := <-a.terms
			b := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "b"})
			synctest.Wait()
			cut(w, "a:2181")
			if cause := <-a.ended; !errors.Is(cause, session.ErrSuspended) {
				t.Errorf("cause: got %v, want ErrSuspended", cause)
			}
			lost := time.Now()
			second := <-b.terms
			if margin := time.Since(lost); margin < memTimeout/3-time.Second {
				t.Errorf("the next term began %v after the first ended, want a third of %v", margin, memTimeout)
			}
			if second.ID <= first.ID {
				t.Errorf("terms: got %d after %d", second.ID, first.ID)
			}
			must(t, a.stop())
			must(t, b.stop())
			w.Heal()
		})
	}
}

// A suspension within the session ends the term locally, and the same term
// goes on afterwards. Updates report both.
func TestSuspendedTermGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		first := <-a.terms
		w.CutServerToClient("a:2181") // the server hears us, we do not hear it
		if cause := <-a.ended; !errors.Is(cause, session.ErrSuspended) {
			t.Errorf("cause: got %v, want ErrSuspended", cause)
		}
		w.Heal()
		if second := <-a.terms; second.ID != first.ID {
			t.Errorf("term after the suspension: got %d, want %d", second.ID, first.ID)
		}
		var mine []bool
		for len(mine) < 4 {
			mine = append(mine, (<-a.updates).Mine)
		}
		if fmt.Sprint(mine) != "[false true false true]" {
			t.Errorf("updates: got %v", mine)
		}
		must(t, a.stop())
	})
}

func TestFlappingConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		for range 20 {
			w.DropConnections("a:2181")
			time.Sleep(memTimeout / 4)
		}
		select {
		case cause := <-a.ended:
			t.Errorf("the term ended: %v", cause)
		default:
		}
		must(t, a.stop())
	})
}

func TestNodeDeletedByOperator(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		first := <-a.terms
		must(t, w.Delete(first.Path))
		if cause := <-a.ended; !errors.Is(cause, recipe.ErrLost) {
			t.Errorf("cause: got %v, want ErrLost", cause)
		}
		if second := <-a.terms; second.ID <= first.ID || second.Path == first.Path {
			t.Errorf("the next term is %+v after %+v, want a new znode", second, first)
		}
		must(t, a.stop())
	})
}

func TestNoAuthOnElectionPath(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		must(t, w.CreateWith("/e", nil, jute.FlagPersistent, []jute.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}}))
		c := New(Config{Name: "e", Path: "/e", ID: "a"})
		if err := c.Run(t.Context(), dialMem(t, w, "a"), nil); !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("got %v, want ErrNoAuth", err)
		}
	})
}

func TestExpiryEndsRun(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		s := dialMem(t, w, "a")
		a := run(t, s, Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		w.ExpireSession(s.ID())
		<-a.ended
		if err := a.stop(); err != nil && !errors.Is(err, session.ErrExpired) {
			t.Errorf("run: got %v, want ErrExpired", err)
		}
	})
}

func TestJoinDelay(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		low := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "low", JoinDelay: memTimeout})
		time.Sleep(memTimeout / 2)
		high := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "high"})
		<-high.terms
		time.Sleep(memTimeout)
		if names, _ := w.Children("/e"); len(names) != 2 {
			t.Errorf("candidates: got %v, want two", names)
		}
		must(t, high.Resign(t.Context()))
		<-low.terms
		must(t, low.stop())
		must(t, high.stop())
	})
}

func TestObserve(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		seen := make(chan view.Leader, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		o := dialMem(t, w, "o")
		go func() { done <- Observe(ctx, o, "/e", "", func(l view.Leader) { seen <- l }) }()
		if l := <-seen; l.ID != "" || l.Term != 0 {
			t.Errorf("without candidates: got %+v", l)
		}
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		first := <-a.terms
		if l := <-seen; l.ID != "a" || l.Term != first.ID {
			t.Errorf("got %+v, want a in term %d", l, first.ID)
		}
		must(t, a.stop())
		if l := <-seen; l.ID != "" {
			t.Errorf("after the leader left: got %+v", l)
		}
		cancel()
		<-done
	})
}
