package hook

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// contender is a candidate with one leader-only hook, as an agent has it.
type contender struct {
	cand *election.Candidate
	ran  chan string // ids of those whose hook has begun
}

func newContender(id string, ran chan string) *contender {
	c := &contender{ran: ran}
	c.cand = election.New(election.Config{Name: "e", Path: "/e", ID: id, Keep: true, Lead: func(ctx context.Context, t election.Term) {
		c.lead(ctx, id, t)
	}})
	return c
}

// lead is what Agent.lead does with a term.
func (c *contender) lead(ctx context.Context, id string, t election.Term) {
	state := State{InPlace: func(view.Source) bool { return true }, Next: make(chan struct{})}
	e := newEngine(func() State { return state })
	e.Set([]Config{{Name: "h", Leader: "e", OnElected: true, Command: argv("hook"), Timeout: time.Hour}}, nil)
	p := &place{engine: e, election: "e", scope: scope{
		term: t.ID,
		run: func(ctx context.Context, _ proc.Command) (proc.Result, error) {
			c.ran <- id
			<-ctx.Done()
			return proc.Result{}, context.Cause(ctx)
		},
		newLedger: func(string) ledger { return &zkLedger{s: t.Session, guard: t.Guard(), path: "/e-ledger/h"} },
	}}
	p.run(ctx)
	<-ctx.Done()
}

// TestFailover_ThreeRequests: from a leader's clean stop to the start of the next
// leader's hook one candidate of a thousand is woken, and it sends three requests:
// the list, the ledger's read, and the guarded write that a run was started.
func TestFailover_ThreeRequests(t *testing.T) {
	testhelp.InTurn(t, 2)
	const hosts, each = 20, 50
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		ran := make(chan string, 1)
		var first *contender
		for i := range hosts {
			s, err := session.Dial(ctx, session.Config{Servers: []string{fmt.Sprintf("h%d:2181", i)}, Timeout: simTimeout, Dial: w.Dial})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			for j := range each {
				c := newContender(strconv.Itoa(i*each+j), ran)
				wg.Go(func() { _ = c.cand.Run(ctx, s, nil) })
				synctest.Wait()
				if first == nil {
					first = c
					<-ran
				}
			}
		}
		w.ResetRequests()
		if err := first.cand.Resign(ctx); err != nil {
			t.Fatal(err)
		}
		if id := <-ran; id != "1" {
			t.Errorf("candidate %s leads, want the second", id)
		}
		synctest.Wait()
		got := w.Requests()
		delete(got, "ping")
		want := map[string]uint64{"delete": 1, "getChildren2": 1, "getData": 1, "multi": 1}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("requests of a failover: got %v, want %v", got, want)
		}
		cancel()
		wg.Wait()
	})
}

// A command that is ended because the session or its lease has ended, before the term knows,
// has not failed: what it has done is unknown.
func TestRunInTerm_EndOfTheSessionIsNoFailure(t *testing.T) {
	for name, end := range map[string]func(*memzk.Server, *session.Session){
		"expired":   func(w *memzk.Server, s *session.Session) { w.ExpireSession(s.ID()) },
		"suspended": func(w *memzk.Server, _ *session.Session) { w.Partition("h:2181") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memzk.New(memzk.Options{TickTime: time.Second})
				defer w.Close()
				s, err := session.Dial(t.Context(), session.Config{Servers: []string{"h:2181"}, Timeout: simTimeout, Dial: w.Dial})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				e := newEngine(func() State { return State{} })
				e.Options.Run = func(ctx context.Context, _ proc.Command) (proc.Result, error) {
					end(w, s)
					<-ctx.Done()
					return proc.Result{Code: -1}, context.Cause(ctx)
				}
				_, err = e.runInTerm(t.Context(), &term{ctx: t.Context(), election: election.Term{ID: 7, Session: s}}, proc.Command{})
				if state := endOf(t.Context(), err); err == nil || state != "" {
					t.Errorf("the ledger says %q, after %v", state, err)
				}
			})
		})
	}
}
