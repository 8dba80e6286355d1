package recipe

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// ballot is a transaction of two sites with two coordinators, of which chosen
// ones die at chosen requests and start again.
type ballot struct {
	w     *world
	doom  map[string]doom // by actor
	mu    sync.Mutex      // mu guards what follows
	ended map[string]Decision
	made  map[string]bool // prepare records, which are durable
	hits  map[string]bool // actors that were killed
}

// doom is when an actor dies.
type doom struct {
	n      int
	before bool
}

var ballotSites = []string{"a", "b"}

// actors are all that take part.
var actors = []string{"p", "a", "b", "k0", "k1"}

func newBallot(w *world, doom map[string]doom) *ballot {
	return &ballot{w: w, doom: doom, ended: map[string]Decision{}, made: map[string]bool{}, hits: map[string]bool{}}
}

// lives runs an actor until one of its lives has ended with a decision. Only the
// first life is doomed.
func (b *ballot) lives(t *testing.T, name string, live func(p *process, x *Txn) (Decision, error)) {
	end := b.doom[name]
	for range 20 {
		p := b.w.start(t, name, end.n, end.before)
		d, err := live(p, NewTxn(p.s, "/txn/1"))
		if !p.alive() {
			b.mu.Lock()
			b.hits[name] = true
			b.mu.Unlock()
			_ = p.s.Close() // no more than a killed process can do: it has no connection
			end = doom{}
			continue
		}
		if err == nil {
			b.mu.Lock()
			b.ended[name] = d
			b.mu.Unlock()
			return
		}
		pause(t.Context(), memTimeout)
	}
	t.Errorf("%s never learned the decision", name)
}

// site is one life of a site. In doubt, with a prepare record, it waits for the
// result; without one it takes back what its former life may have voted.
func (b *ballot) site(name string) func(*process, *Txn) (Decision, error) {
	return func(p *process, x *Txn) (Decision, error) {
		b.mu.Lock()
		prepared := b.made[name]
		b.mu.Unlock()
		if prepared {
			return x.AwaitOrAbort(p.ctx)
		}
		if d, err := x.Withdraw(p.ctx, name); err != nil || d != Undecided {
			return d, err
		}
		b.mu.Lock()
		b.made[name] = true
		b.mu.Unlock()
		if d, err := x.Vote(p.ctx, name, Commit); err != nil && !errors.Is(err, ErrDecided) {
			return d, err
		}
		return x.AwaitOrAbort(p.ctx)
	}
}

// propose is one life of the proposer: somebody proposed, that is what counts.
func propose(p *process, x *Txn) (Decision, error) {
	err := x.Propose(p.ctx, Proposal{Sites: ballotSites, Deadline: time.Now().Add(10 * memTimeout)})
	if err != nil && !errors.Is(err, session.ErrNodeExists) {
		return Undecided, err
	}
	return x.Await(p.ctx)
}

// hold runs the transaction to its end and checks that all agree.
func (b *ballot) hold(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { b.lives(t, "p", propose) })
	for _, name := range ballotSites {
		wg.Go(func() { b.lives(t, name, b.site(name)) })
	}
	for _, name := range []string{"k0", "k1"} {
		wg.Go(func() {
			b.lives(t, name, func(p *process, x *Txn) (Decision, error) { return x.Coordinate(p.ctx) })
		})
	}
	wg.Wait()
	node, err := b.w.Get("/txn/1/tx_result")
	must(t, err)
	result := Decision(node.Data)
	if result != Commit && result != Abort {
		t.Errorf("result: got %q", result)
	}
	for name, d := range b.ended {
		if d != result {
			t.Errorf("%s ended with %q, the result is %q", name, d, result)
		}
	}
	if result == Commit && len(b.made) < len(ballotSites) {
		t.Errorf("committed with prepare records of %v alone", b.made)
	}
}

// One actor after the other is killed at every request, before and after it was
// sent: all that live or come back end with the one result.
func TestTxn_KilledAtEveryStep(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, victim := range actors {
		t.Run(victim, func(t *testing.T) {
			everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
				b := newBallot(w, map[string]doom{victim: {n, before}})
				b.hold(t)
				return b.hits[victim]
			})
		})
	}
}

// A coordinator and a site are both killed, at every pair of requests.
func TestTxn_TwoKilledAtEveryStep(t *testing.T) {
	const most = 60
	first, stride := testhelp.Steps()
	for site := first; site <= most; site += stride {
		died := false
		for k := 1; k <= most; k++ {
			both := false
			bubble(t, func(t *testing.T, w *world) {
				before := (site+k)%2 == 0
				b := newBallot(w, map[string]doom{"a": {site, before}, "k0": {k, k%3 == 0}})
				b.hold(t)
				died = died || b.hits["a"]
				both = b.hits["a"] && b.hits["k0"]
			})
			if t.Failed() {
				t.Fatalf("killed at requests %d and %d", site, k)
			}
			if !both {
				break // the coordinator has no more requests
			}
		}
		if !died {
			return // the site has no more requests
		}
	}
	t.Errorf("a site made more than %d requests", most)
}

// Every reply to anybody is lost once: no error comes of it, and all agree.
func TestTxn_ReplyLostAtEveryStep(t *testing.T) {
	first, stride := testhelp.Steps()
	for n := first; n < 200; n += stride {
		hit := false
		for _, before := range []bool{true, false} {
			bubble(t, func(t *testing.T, w *world) {
				struck := w.LoseReply(memzk.AnyOp, n, before)
				b := newBallot(w, nil)
				b.hold(t)
				select {
				case <-struck:
					hit = true
				default:
				}
			})
		}
		if !hit {
			return
		}
	}
	t.Error("the transaction does not end")
}
