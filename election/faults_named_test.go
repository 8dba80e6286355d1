package election

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// interruptions are ways for a session to be interrupted. Each returns after
// the interruption has begun.
var interruptions = map[string]func(w *memzk.Server, addr string){
	"connection dropped":  func(w *memzk.Server, addr string) { w.DropConnections(addr) },
	"partition":           func(w *memzk.Server, addr string) { w.Partition(addr) },
	"to the server alone": func(w *memzk.Server, addr string) { w.CutClientToServer(addr) },
	"to the client alone": func(w *memzk.Server, addr string) { w.CutServerToClient(addr) },
	"no new connection": func(w *memzk.Server, addr string) {
		w.RefuseDial(addr)
		w.DropConnections(addr)
	},
}

// However the leader's session is interrupted and for however long, the other
// candidate leads only when the leader has stopped, and in a later term.
func TestSessionInterruptionDoesNotCauseBrainSplit(t *testing.T) {
	for name, interrupt := range interruptions {
		for _, length := range []time.Duration{memTimeout / 4, memTimeout, 3 * memTimeout} {
			t.Run(fmt.Sprint(name, " for ", length), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *memzk.Server) {
					m := &sim{t: t, w: w, terminated: map[int64]bool{}}
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan struct{}, 2)
					for _, id := range []string{"a", "b"} {
						go func() {
							defer func() { ended <- struct{}{} }()
							m.stands(ctx, id)
						}()
						time.Sleep(time.Second)
					}
					for range 3 {
						m.mu.Lock()
						leader, before := m.leader, m.last
						m.mu.Unlock()
						interrupt(w, leader+":2181")
						time.Sleep(length)
						w.Heal()
						time.Sleep(2 * memTimeout)
						synctest.Wait()
						if !m.firstLeads() {
							t.Errorf("after the interruption of %s in term %d the first in line does not lead", leader, before)
						}
					}
					cancel()
					<-ended
					<-ended
				})
			})
		}
	}
}

// stands runs a candidate in one session after the other.
func (m *sim) stands(ctx context.Context, id string) {
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{id + ":2181"}, Timeout: memTimeout, Dial: m.w.Dial})
		if err != nil {
			return
		}
		_ = New(Config{Name: "e", Path: "/e", ID: id, Lead: m.lead(id)}).Run(ctx, s, nil)
		_ = s.Close()
	}
}

// The one before us leaves after we have listed the line and before we watch it.
func TestNodeDisappearsAfterChildrenRetrieved(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		first := <-a.terms
		w.Delay(jute.OpGetChildren2, time.Second) // b sees its list a second late
		b := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "b"})
		time.Sleep(500 * time.Millisecond)
		must(t, w.Delete(first.Path))
		w.Delay(jute.OpGetChildren2, 0)
		if second := <-b.terms; second.ID <= first.ID {
			t.Errorf("terms: got %d after %d", second.ID, first.ID)
		}
		must(t, b.stop())
		must(t, a.stop())
	})
}

// A candidate that resigns again and again while others do, and while its own
// znode is deleted under it: no event of a former candidacy ends or begins a
// term of a later one.
func TestResetRace(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		a := run(t, dialMem(t, w, "a"), Config{Name: "e", Path: "/e", ID: "a"})
		b := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "b"})
		var last int64
		for i := range 20 {
			w.Delay(jute.OpDelete, time.Duration(i%3)*time.Second)
			select {
			case term := <-a.terms:
				last = grows(t, last, term)
				reset(t, w, a, term, i%2 == 0)
			case term := <-b.terms:
				last = grows(t, last, term)
				reset(t, w, b, term, i%2 == 1)
			}
		}
		must(t, a.stop())
		must(t, b.stop())
	})
}

func grows(t *testing.T, last int64, term Term) int64 {
	t.Helper()
	if term.ID <= last {
		t.Errorf("term %d after %d", term.ID, last)
	}
	return term.ID
}

// reset ends a term by a resignation, which may cross the deletion by an
// operator, and waits for its one end.
func reset(t *testing.T, w *memzk.Server, r *runner, term Term, operator bool) {
	t.Helper()
	if operator {
		must(t, w.Delete(term.Path))
	}
	must(t, r.Resign(t.Context()))
	cause := <-r.ended
	if !errors.Is(cause, ErrResigned) && (!operator || !errors.Is(cause, recipe.ErrLost)) {
		t.Errorf("term %d ended with %v", term.ID, cause)
	}
	if len(r.ended) > 0 {
		t.Errorf("term %d ended twice", term.ID)
	}
}

// A candidate that is resigned from while its create is under way leaves
// nothing behind, whenever the reply comes and whether it comes.
func TestCreateDeleteRace(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, at := range []time.Duration{0, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond} {
			bubble(t, func(t *testing.T, w *memzk.Server) {
				must(t, w.Create("/e", nil))
				s := dialMem(t, w, "a")
				w.Delay(jute.OpCreate2, time.Second)
				if lost {
					w.LoseReply(jute.OpCreate2, 1, false)
				}
				a := run(t, s, Config{Name: "e", Path: "/e", ID: "a"})
				time.Sleep(at)
				synctest.Wait()
				w.Delay(jute.OpCreate2, 0)
				must(t, a.Resign(t.Context()))
				time.Sleep(2 * time.Second)
				if names, err := w.Children("/e"); err != nil || len(names) > 0 {
					t.Errorf("lost=%v, resigned after %s: left behind %v, %v", lost, at, names, err)
				}
				<-a.terms // it stands again
				must(t, a.stop())
			})
		}
	}
}

// A session that the server has ended: the candidate ends with it, closing it
// takes no time, and the next session's candidate is a new one.
func TestKillSessionThenClose(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		var last int64
		for range 5 {
			s := dialMem(t, w, "a")
			a := run(t, s, Config{Name: "e", Path: "/e", ID: "a"})
			last = grows(t, last, <-a.terms)
			w.ExpireSession(s.ID())
			start := time.Now()
			if err := a.stop(); err != nil && !errors.Is(err, session.ErrExpired) {
				t.Errorf("run: %v", err)
			}
			must(t, s.Close())
			if took := time.Since(start); took > memTimeout/3 {
				t.Errorf("the end took %v of virtual time", took)
			}
			if names, err := w.Children("/e"); err != nil || len(names) > 0 {
				t.Errorf("left behind: %v, %v", names, err)
			}
			<-a.ended
		}
	})
}

// A candidate that starts when no server can be reached leads when one can.
func TestNoServerAtStart(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		w.Stop()
		m, err := session.New(session.Config{Servers: []string{"a:2181"}, Timeout: memTimeout, Dial: w.Dial})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = m.Run(ctx)
		}()
		time.AfterFunc(10*time.Minute, w.Start)
		s, err := m.Session(ctx)
		must(t, err)
		a := run(t, s, Config{Name: "e", Path: "/e", ID: "a"})
		<-a.terms
		must(t, a.stop())
		cancel()
		<-ended
	})
}

// What ends a term, and what follows: the same term, another one, or the end
// of Run.
func TestErrorPolicies(t *testing.T) {
	type after struct{ cause, run error }
	for name, c := range map[string]struct {
		fault func(w *memzk.Server, s *session.Session, term Term)
		want  after
		same  bool
	}{
		"short disconnection": {fault: func(w *memzk.Server, _ *session.Session, _ Term) { w.DropConnections() }, same: true},
		"lease ran out": {
			fault: func(w *memzk.Server, _ *session.Session, _ Term) { w.CutServerToClient() },
			want:  after{cause: session.ErrSuspended}, same: true,
		},
		"znode deleted": {
			fault: func(w *memzk.Server, _ *session.Session, term Term) { _ = w.Delete(term.Path) },
			want:  after{cause: recipe.ErrLost},
		},
		"session expired": {
			fault: func(w *memzk.Server, s *session.Session, _ Term) { w.ExpireSession(s.ID()) },
			want:  after{cause: session.ErrExpired, run: session.ErrExpired},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *memzk.Server) {
				s := dialMem(t, w, "a")
				a := run(t, s, Config{Name: "e", Path: "/e", ID: "a"})
				first := <-a.terms
				c.fault(w, s, first)
				if c.want.cause == nil {
					time.Sleep(memTimeout)
					if len(a.ended) > 0 {
						t.Errorf("the term ended: %v", <-a.ended)
					}
				} else if cause := <-a.ended; !errors.Is(cause, c.want.cause) {
					t.Errorf("cause: got %v, want %v", cause, c.want.cause)
				}
				w.Heal()
				switch {
				case c.want.run != nil:
					synctest.Wait()
					if err := a.stop(); !errors.Is(err, c.want.run) {
						t.Errorf("run: got %v, want %v", err, c.want.run)
					}
					return
				case c.want.cause != nil:
					if next := <-a.terms; (next.ID == first.ID) != c.same {
						t.Errorf("term %d after %d", next.ID, first.ID)
					}
				}
				must(t, a.stop())
			})
		})
	}
}
