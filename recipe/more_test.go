package recipe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

func TestBarrier_SpuriousWakeupAndRecreated(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		b := NewBarrier(w.dial("a"), "/b")
		must(t, b.Close(t.Context()))
		passed := make(chan error, 1)
		go func() { passed <- b.Wait(t.Context()) }()
		for range 3 { // what is no opening: data, a reconnect, a short absence
			must(t, w.Set("/b", []byte("x")))
			w.DropConnections()
			synctest.Wait()
			time.Sleep(memTimeout)
		}
		select {
		case err := <-passed:
			t.Fatalf("the barrier opened by itself: %v", err)
		default:
		}
		must(t, w.Delete("/b"))
		must(t, <-passed)
	})
}

func TestDoubleBarrier_MemberDiesBeforeReady(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		member := func(name string) *DoubleBarrier {
			return NewDoubleBarrier(w.dial(name), DoubleBarrierConfig{Path: "/d", N: 2, ID: name})
		}
		dead := w.dial("dead")
		go func() {
			_, _ = NewDoubleBarrier(dead, DoubleBarrierConfig{Path: "/d", N: 2, ID: "dead"}).Enter(t.Context())
		}()
		synctest.Wait()
		w.ExpireSession(dead.ID())
		entered := make(chan *Hold, 2)
		a, b := member("a"), member("b")
		enter := func(d *DoubleBarrier) {
			h, err := d.Enter(t.Context())
			if err != nil {
				t.Error(err)
			}
			entered <- h
		}
		go enter(a)
		synctest.Wait()
		if len(entered) > 0 {
			t.Fatal("let in with one member alive")
		}
		go enter(b)
		ha := <-entered
		hb := <-entered
		if ha.Path() != a.own {
			ha, hb = hb, ha
		}
		left := make(chan error, 1)
		go func() { left <- a.Leave(t.Context(), ha) }()
		synctest.Wait()
		if len(left) > 0 {
			t.Fatal("left while another member is inside")
		}
		must(t, b.Leave(t.Context(), hb))
		must(t, <-left)
		if w.Exists("/d/ready") {
			t.Error("ready is left over")
		}
	})
}

func TestDoubleBarrier_ReadyOfAFormerRound(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		must(t, w.Create("/d", nil))
		must(t, w.Create("/d/ready", nil))
		d := NewDoubleBarrier(w.dial("a"), DoubleBarrierConfig{Path: "/d", N: 1})
		if _, err := d.Enter(t.Context()); !errors.Is(err, ErrRound) {
			t.Errorf("got %v, want ErrRound", err)
		}
	})
}

func TestDoubleBarrier_OverSubscribed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const members = 5
		done := make(chan error, members)
		for i := range members {
			s := w.dial(strconv.Itoa(i))
			go func() {
				// One that comes when the others have left waits for a next
				// round that never is.
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				d := NewDoubleBarrier(s, DoubleBarrierConfig{Path: "/d", N: 3})
				h, err := d.Enter(ctx)
				if err == nil {
					err = d.Leave(t.Context(), h)
				}
				done <- err
			}()
		}
		left := 0
		for range members {
			err := <-done
			if err == nil {
				left++
			} else if !errors.Is(err, ErrRound) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("member: %v", err)
			}
		}
		if left < 3 {
			t.Errorf("only %d members entered and left", left)
		}
		settle()
		if names := w.leftovers("/d"); len(names) > 0 {
			t.Errorf("left behind: %v", names)
		}
	})
}

func TestNode_Owners(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		former, s := w.dial("former"), w.dial("s")
		_, _, err := former.Create(t.Context(), "/n", []byte("old"), session.Ephemeral)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		n := NewNode(NodeConfig{Path: "/n", Data: []byte("new")})
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx, s) }()
		synctest.Wait()
		if node, err := w.Get("/n"); err != nil || string(node.Data) != "old" {
			t.Errorf("a foreign znode: got %q, %v, want it untouched", node.Data, err)
		}
		w.ExpireSession(former.ID())
		<-n.Created()
		n.SetData([]byte("newer"))
		synctest.Wait()
		if node, err := w.Get("/n"); err != nil || string(node.Data) != "newer" || node.Stat.EphemeralOwner != s.ID() {
			t.Errorf("got %q of %#x, %v", node.Data, node.Stat.EphemeralOwner, err)
		}
		must(t, w.Delete("/n"))
		time.Sleep(time.Second)
		if !w.Exists("/n") {
			t.Error("not created again after a delete")
		}
		writes := w.Requests()["setData"]
		w.DropConnections()
		time.Sleep(memTimeout)
		if got := w.Requests()["setData"]; got != writes {
			t.Errorf("a reconnect wrote %d times", got-writes)
		}
		cancel()
		must(t, <-done)
		if w.Exists("/n") {
			t.Error("left behind")
		}
	})
}

func TestNode_FormerSessionIsReplacedAndPersistentRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		former, s := w.dial("former"), w.dial("s")
		_, _, err := former.Create(t.Context(), "/n", nil, session.Ephemeral)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		n := NewNode(NodeConfig{Path: "/n", Internal: keeper.Config{Earlier: []int64{former.ID()}}})
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx, s) }()
		<-n.Created()
		cancel()
		must(t, <-done)
		must(t, w.Create("/n", nil))
		if err := NewNode(NodeConfig{Path: "/n"}).Run(t.Context(), s); !errors.Is(err, ErrInTheWay) {
			t.Errorf("a persistent znode: got %v, want ErrInTheWay", err)
		}
	})
}

func TestQueue_TooLongAndQuota(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		q := NewQueue(s, QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("x")))
		w.RefuseWith(jute.OpMulti, jute.ErrCodeQuotaExceeded)
		if err := q.Put(t.Context(), nil); !errors.Is(err, session.ErrQuota) {
			t.Errorf("quota: got %v, want ErrQuota", err)
		}
		w.Allow(jute.OpMulti)
		if _, err := q.Take(t.Context()); err != nil {
			t.Errorf("take: %v", err)
		}
	})
}

func TestQueue_ConsumerWaitsForAnItemThatComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.dial("a"), w.dial("b")
		qa, qb := NewQueue(a, QueueConfig{Path: "/q"}), NewQueue(b, QueueConfig{Path: "/q"})
		got := make(chan string, 1)
		go func() {
			r, err := qb.Reserve(t.Context()) // before anything exists
			if err != nil {
				t.Error(err)
				return
			}
			got <- string(r.Body())
		}()
		synctest.Wait()
		must(t, qa.Put(t.Context(), []byte("one")))
		if body := <-got; body != "one" {
			t.Errorf("got %q", body)
		}
		taken := make(chan error, 1)
		go func() {
			_, err := qa.Take(t.Context())
			taken <- err
		}()
		synctest.Wait()
		w.ExpireSession(b.ID())
		must(t, <-taken)
	})
}

// Sites and coordinators lose connections and sessions at random moments: the
// decision is one, and commit only if all voted so.
func TestTxn_OneDecision(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) { oneDecision(t, w, seed) })
	})
}

func oneDecision(t *testing.T, w *world, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	sites := []string{"a", "b", "c"}
	must(t, NewTxn(w.dial("p"), "/txn/1").Propose(t.Context(), Proposal{Sites: sites, Deadline: time.Now().Add(10 * memTimeout)}))
	var mu sync.Mutex // mu guards what follows
	decisions, aborts := map[Decision]int{}, 0
	note := func(d Decision, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		if err == nil && d != Undecided {
			decisions[d]++
			return true
		}
		return false
	}
	var wg sync.WaitGroup
	life := func(name string, live func(x *Txn) bool) {
		for {
			s, err := w.tryDialFree(t.Context(), name)
			if err != nil {
				continue
			}
			over := live(NewTxn(s, "/txn/1"))
			_ = s.Close()
			if over {
				return
			}
		}
	}
	for _, site := range sites {
		vote := Commit
		if rng.IntN(6) == 0 {
			vote, aborts = Abort, aborts+1
		}
		delay := time.Duration(rng.Int64N(int64(memTimeout)))
		wg.Go(func() {
			life(site, func(x *Txn) bool {
				if d, err := x.Withdraw(t.Context(), site); err != nil || d != Undecided {
					return note(d, err)
				}
				time.Sleep(delay)
				if d, err := x.Vote(t.Context(), site, vote); err != nil && !errors.Is(err, ErrDecided) {
					return note(d, err)
				}
				return note(x.AwaitOrAbort(t.Context()))
			})
		})
	}
	for i := range 2 {
		wg.Go(func() {
			life(fmt.Sprintf("k%d", i), func(x *Txn) bool { return note(x.Coordinate(t.Context())) })
		})
	}
	for range 6 {
		w.LoseReply(memzk.AnyOp, 1+rng.IntN(12), rng.IntN(2) == 0)
		if ids := w.SessionIDs(); len(ids) > 0 && rng.IntN(2) == 0 {
			w.ExpireSession(ids[rng.IntN(len(ids))])
		}
		time.Sleep(time.Duration(rng.Int64N(int64(memTimeout / 2))))
	}
	wg.Wait()
	if len(decisions) != 1 {
		t.Errorf("decisions: got %v, want one", decisions)
	}
	if aborts > 0 && decisions[Commit] > 0 {
		t.Error("committed although a site voted abort")
	}
}

// tryDialFree is tryDial for sessions that the caller closes.
func (w *world) tryDialFree(ctx context.Context, name string) (*session.Session, error) {
	return session.Dial(ctx, session.Config{Servers: []string{name + ":2181"}, Timeout: memTimeout, Dial: w.Dial})
}

func TestTxn_LateAndWrongVotes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		x := NewTxn(s, "/t")
		for _, p := range []Proposal{{}, {Sites: []string{"a", "a"}}, {Sites: []string{"tx_result"}}, {Sites: []string{"a/b"}}} {
			if err := x.Propose(ctx, p); !errors.Is(err, ErrFormat) {
				t.Errorf("proposal %v: got %v, want ErrFormat", p.Sites, err)
			}
		}
		must(t, x.Propose(ctx, Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(time.Minute)}))
		if err := x.Propose(ctx, Proposal{Sites: []string{"a"}}); !errors.Is(err, session.ErrNodeExists) {
			t.Errorf("second proposal: got %v, want ErrNodeExists", err)
		}
		if _, err := x.Vote(ctx, "b", Commit); !errors.Is(err, ErrNoSite) {
			t.Errorf("a stranger's vote: got %v, want ErrNoSite", err)
		}
		if err := x.Remove(ctx); !errors.Is(err, ErrHeld) {
			t.Errorf("remove while undecided: got %v, want ErrHeld", err)
		}
		if d, err := x.AwaitOrAbort(ctx); d != Abort || err != nil {
			t.Errorf("after the deadline: got %q, %v, want abort", d, err)
		}
		if d, err := x.Vote(ctx, "a", Commit); d != Abort || !errors.Is(err, ErrDecided) {
			t.Errorf("late vote: got %q, %v, want abort and ErrDecided", d, err)
		}
		must(t, x.Remove(ctx))
	})
}

func TestQueue_TooLongToList(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s, err := session.Dial(t.Context(), session.Config{
			Servers: []string{"a:2181"}, Timeout: memTimeout, Dial: w.Dial, MaxReply: 16 << 10,
		})
		must(t, err)
		w.opened(s)
		q := NewQueue(s, QueueConfig{Path: "/q"})
		for range 2000 {
			must(t, q.Put(t.Context(), nil))
		}
		if n, err := q.Len(t.Context()); n != 2000 || err != nil {
			t.Errorf("len: got %d, %v", n, err)
		}
		if _, err := q.TryTake(t.Context()); !errors.Is(err, ErrTooLong) {
			t.Errorf("take: got %v, want ErrTooLong", err)
		}
		if _, err := q.Purge(t.Context()); !errors.Is(err, ErrTooLong) {
			t.Errorf("purge: got %v, want ErrTooLong", err)
		}
	})
}
