package election

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A term of a candidate that leads once ends with its session. In the next session the
// server refuses to let it join: Run reports that.
func TestOnce_RefusedAfterATermThatExpired(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		s := dialMem(t, w, "a")
		c := New(Config{Name: "e", Path: "/e", ID: "a", Once: true, Lead: func(ctx context.Context, _ Term) {
			w.ExpireSession(s.ID())
			<-ctx.Done()
		}})
		if err := c.Run(t.Context(), s, nil); err == nil {
			t.Error("the term ended with its session, and Run says nothing")
		}
		w.RefuseWith(jute.OpCreate2, jute.ErrCodeNoAuth)
		if err := c.Run(t.Context(), dialMem(t, w, "b"), nil); !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("got %v, want ErrNoAuth", err)
		}
	})
}

// A candidate that keeps its znode resigns while the context of Run ends, in both
// orders: its znode is deleted.
func TestResign_WhileTheContextEnds(t *testing.T) {
	for name, first := range map[string]string{"resign first": "resign", "stop first": "stop"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *memzk.Server) {
				s := dialMem(t, w, "a")
				leads := make(chan Term, 1)
				c := New(Config{Name: "e", Path: "/e", ID: "a", Keep: true, Lead: func(ctx context.Context, term Term) {
					leads <- term
					<-ctx.Done()
					time.Sleep(time.Second) // both happen
				}})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ran, resigned := make(chan error, 1), make(chan error, 1)
				go func() { ran <- c.Run(ctx, s, nil) }()
				term := <-leads
				if first == "stop" {
					cancel()
				}
				go func() { resigned <- c.Resign(t.Context()) }()
				synctest.Wait()
				cancel()
				must(t, <-ran)
				must(t, <-resigned)
				if w.Exists(term.Path) {
					t.Error("the znode stays")
				}
			})
		})
	}
}

// Resign does not wait for a Lead that takes its time, and the context of Run ends before Lead
// returns: the znode goes.
func TestResign_GivenUpWhileTheContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		s, leads := dialMem(t, w, "a"), make(chan Term, 1)
		c := New(Config{Name: "e", Path: "/e", ID: "a", Keep: true, Lead: func(ctx context.Context, term Term) {
			leads <- term
			<-ctx.Done()
			time.Sleep(2 * time.Second)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- c.Run(ctx, s, nil) }()
		term := <-leads
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := c.Resign(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		cancel()
		must(t, <-ran)
		if w.Exists(term.Path) {
			t.Error("the znode stays")
		}
	})
}

// A candidate without an ID is refused at once: nobody could tell who leads.
func TestRun_NeedsAnID(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		err := New(Config{Path: "/e", Lead: func(context.Context, Term) {}}).Run(t.Context(), dialMem(t, w, "a"), nil)
		if err == nil || !strings.Contains(err.Error(), "ID is empty") {
			t.Errorf("got %v", err)
		}
	})
}
