package recipe

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/session"
)

// What a transaction relies on is deleted and made again under the same name, with other
// content, between a read and the write that relies on it.

// A site takes its vote of commit back and votes abort, after the coordinator has read
// all votes and before it decides.
func TestTxn_VoteOfAbortInPlaceOfACommit(t *testing.T) {
	for name, gone := range map[string]func(w *world, x *Txn, owner *session.Session) error{
		"withdrawn": func(w *world, x *Txn, _ *session.Session) error { return second(x.Withdraw(w.t.Context(), "b")) },
		"expired": func(w *world, _ *Txn, owner *session.Session) error {
			w.ExpireSession(owner.ID())
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				old, site, c := w.dial("old"), w.dial("site"), w.dial("coordinator")
				x, b := NewTxn(c, "/txn/1"), NewTxn(site, "/txn/1")
				must(t, x.Propose(ctx, Proposal{Sites: []string{"a", "b"}, Deadline: time.Now().Add(time.Hour)}))
				must(t, second(b.Vote(ctx, "a", Commit)))
				must(t, second(NewTxn(old, "/txn/1").Vote(ctx, "b", Commit)))
				voted := w.between("coordinator", jute.OpMulti, "/txn/1/tx_result", func() {
					must(t, gone(w, b, old))
					must(t, second(b.Vote(ctx, "b", Abort)))
				})
				d, err := x.Coordinate(ctx)
				<-voted
				if must(t, err); d != Abort {
					t.Errorf("%s over a vote of abort", d)
				}
			})
		})
	}
}

// The transaction is removed and another one with more sites is proposed at its path,
// before a coordinator, a site and a Remove of the first one send their multi.
func TestTxn_AnotherProposalAtThePath(t *testing.T) {
	acts := map[string]func(ctx context.Context, x *Txn) error{
		"commit":   func(ctx context.Context, x *Txn) error { return second(x.Coordinate(ctx)) },
		"vote":     func(ctx context.Context, x *Txn) error { return second(x.Vote(ctx, "b", Commit)) },
		"remove":   func(ctx context.Context, x *Txn) error { return x.Remove(ctx) },
		"withdraw": func(ctx context.Context, x *Txn) error { return second(x.Withdraw(ctx, "a")) },
		"abort": func(ctx context.Context, x *Txn) error {
			time.Sleep(2 * time.Hour)
			return second(x.AwaitOrAbort(ctx))
		},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				late, other := w.dial("late"), w.dial("other")
				x := NewTxn(other, "/txn/1")
				must(t, x.Propose(ctx, Proposal{Sites: []string{"a", "b"}, Deadline: time.Now().Add(time.Hour)}))
				must(t, second(x.Vote(ctx, "a", Commit)))
				if name == "commit" {
					must(t, second(x.Vote(ctx, "b", Commit)))
				}
				if name == "remove" {
					must(t, second(x.Abort(ctx)))
				}
				replaced := w.between("late", jute.OpMulti, "/txn/1", func() {
					must(t, second(x.Abort(ctx)))
					must(t, x.Remove(ctx))
					must(t, x.Propose(ctx, Proposal{Sites: []string{"a", "b", "c"}, Deadline: time.Now().Add(5 * time.Hour)}))
					must(t, second(x.Vote(ctx, "a", Commit)))
					if name != "vote" {
						must(t, second(x.Vote(ctx, "b", Commit)))
					}
				})
				err := act(ctx, NewTxn(late, "/txn/1"))
				select {
				case <-replaced:
				case <-time.After(time.Hour): //nolint:forbidigo // one timer in a test
					t.Fatalf("no multi to hold; the call returned %v", err)
				}
				if want := map[bool]error{true: ErrHeld, false: session.ErrNoNode}[name == "remove"]; !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
				if d, err := x.Result(ctx); d != Undecided || err != nil {
					t.Errorf("the other transaction: %q, %v", d, err)
				}
				names, _, err := other.Children(ctx, "/txn/1")
				must(t, err)
				if want := map[bool]int{true: 3, false: 4}[name == "vote"]; len(names) != want {
					t.Errorf("left %v, want %d", names, want)
				}
			})
		})
	}
}

// A site withdraws the vote of its previous life. Before its multi that vote expires, and a
// third life of the site votes: its vote stays.
func TestTxn_WithdrawLeavesALaterVote(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		old, late, later := w.dial("old"), w.dial("late"), w.dial("later")
		x := NewTxn(later, "/txn/1")
		must(t, x.Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}))
		must(t, second(NewTxn(old, "/txn/1").Vote(ctx, "a", Commit)))
		voted := w.between("late", jute.OpMulti, "/txn/1/a", func() {
			w.ExpireSession(old.ID())
			must(t, second(x.Vote(ctx, "a", Commit)))
		})
		d, err := NewTxn(late, "/txn/1").Withdraw(ctx, "a")
		<-voted
		if d != Undecided || err != nil {
			t.Errorf("withdrew with %q, %v", d, err)
		}
		if !w.Exists("/txn/1/a") {
			t.Error("the vote of a later life is gone")
		}
	})
}

// Remove is cut at each request, by a lost connection or by the end of the process. The
// next one ends it: afterwards the same path can be proposed again.
func TestTxn_RemoveCutAtEveryStep(t *testing.T) {
	everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
		ctx := t.Context()
		s := w.dial("later")
		x, p := NewTxn(s, "/txn/1"), Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}
		must(t, x.Propose(ctx, p))
		must(t, second(x.Vote(ctx, "a", Commit)))
		must(t, second(x.Coordinate(ctx)))
		victim := w.start(t, "victim", n, before)
		err := NewTxn(victim.s, "/txn/1").Remove(victim.ctx)
		hit := !victim.alive()
		if !hit {
			must(t, err)
		}
		must(t, x.Remove(ctx))
		for path := range w.Tree() {
			if path == "/txn/1" || path == "/txn/1-latch" {
				t.Errorf("%s is left", path)
			}
		}
		must(t, x.Propose(ctx, p))
		return hit
	})
}

// Something of the transaction goes between the list of Remove and its multi: a vote, with
// its session, or all of it, by another Remove. Remove ends nevertheless.
func TestTxn_RemoveOfPartsThatGo(t *testing.T) {
	for name, goes := range map[string]func(ctx context.Context, w *world, site *session.Session) error{
		"vote": func(_ context.Context, w *world, site *session.Session) error {
			w.ExpireSession(site.ID())
			return nil
		},
		"all": func(ctx context.Context, _ *world, site *session.Session) error {
			return NewTxn(site, "/txn/1").Remove(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				s, site := w.dial("s"), w.dial("site")
				x, p := NewTxn(s, "/txn/1"), Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}
				must(t, x.Propose(ctx, p))
				must(t, second(NewTxn(site, "/txn/1").Vote(ctx, "a", Commit)))
				must(t, second(x.Coordinate(ctx)))
				gone := w.between("s", jute.OpMulti, "/txn/1", func() { must(t, goes(ctx, w, site)) })
				must(t, x.Remove(ctx))
				<-gone
				if w.Exists("/txn/1") {
					t.Error("the transaction stays")
				}
			})
		})
	}
}

// An older version deleted the result before the transaction. Remove ends what was cut.
func TestTxn_RemoveWithoutResult(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		s := w.dial("s")
		x, p := NewTxn(s, "/txn/1"), Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Hour)}
		must(t, x.Propose(ctx, p))
		must(t, s.Delete(ctx, "/txn/1/tx_result", -1))
		must(t, x.Remove(ctx))
		must(t, x.Propose(ctx, p))
	})
}
