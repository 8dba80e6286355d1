package recipe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// ledger knows who works on which shard.
type ledger struct {
	t      *testing.T
	mu     sync.Mutex // guards what follows
	owners map[string]map[string]*Hold
	fences map[string]int64
	cut    map[int64]bool // places in line that an operator deleted: their owners do not know at once

	changed chan struct{} // receives when an owner came or went
}

func (l *ledger) tell() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, owners: map[string]map[string]*Hold{}, fences: map[string]int64{}, cut: map[int64]bool{}, changed: make(chan struct{}, 1)}
}

// work is the Work of a member. No other member may still own the shard.
func (l *ledger) work(id string) func(context.Context, string, *Hold) {
	return func(ctx context.Context, shard string, hold *Hold) {
		l.mu.Lock()
		if l.owners[shard] == nil {
			l.owners[shard] = map[string]*Hold{}
		}
		for other, owns := range l.owners[shard] {
			if owns.Err() == nil && !l.cut[owns.Fence()] {
				l.t.Errorf("%s gets %s, and %s owns it", id, shard, other)
			}
		}
		if hold.Fence() <= l.fences[shard] {
			l.t.Errorf("%s: fence %d after %d", shard, hold.Fence(), l.fences[shard])
		}
		l.fences[shard], l.owners[shard][id] = hold.Fence(), hold
		l.mu.Unlock()
		l.tell()
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond) // it takes a while to stop
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.owners[shard], id)
		l.tell()
	}
}

// of returns the shards of each member.
func (l *ledger) of(shards []string) map[string][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]string{}
	for _, shard := range shards {
		for id := range l.owners[shard] {
			all[id] = append(all[id], shard)
		}
	}
	return all
}

// member runs a member over sessions until ctx ends. It calls returned after each Run; nil:
// nothing.
func (w *world) member(ctx context.Context, id string, cfg PartitionerConfig, returned func()) <-chan struct{} {
	done := make(chan struct{})
	cfg.ID = id
	p := NewPartitioner(cfg)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s, err := w.tryDial(ctx, id)
			if err != nil {
				continue
			}
			if err = p.Run(ctx, s); err != nil && session.ActionFor(err) == session.Decide {
				w.t.Errorf("%s: %v", id, err)
			}
			if returned != nil {
				returned()
			}
			_ = s.Close()
		}
	}()
	return done
}

// Members come, go, lose replies, connections and sessions at random, an operator deletes
// their znodes, and the server reaps empty paths: a shard never has two owners, its fences
// grow, each Work has returned when Run returns, and when all is calm each shard has one
// owner.
func TestPartitioner_Random(t *testing.T) {
	shards := []string{"a", "b", "c", "d", "e", "f", "g"}
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r := rand.New(rand.NewPCG(seed, 41))
			l, stops, dones := newLedger(t), map[string]context.CancelFunc{}, map[string]<-chan struct{}{}
			for range 40 {
				id := fmt.Sprint("m", r.IntN(4))
				switch what := r.IntN(11); {
				case what < 2 && stops[id] == nil:
					ctx, stop := context.WithCancel(t.Context())
					stops[id] = stop
					dones[id] = w.member(ctx, id, PartitionerConfig{Path: "/p", Shards: shards, Work: l.work(id)}, func() {
						if works := l.of(shards)[id]; len(works) > 0 {
							t.Errorf("seed %d: Run of %s has returned, and it works on %v", seed, id, works)
						}
					})
				case what == 2 && stops[id] != nil:
					stops[id]()
					delete(stops, id)
					w.Heal(id + ":2181")
					<-dones[id]
				case what == 3:
					w.Partition(id + ":2181")
				case what == 4:
					w.Heal(id + ":2181")
				case what == 5:
					w.LoseReply(memzk.AnyOp, 1+r.IntN(9), r.IntN(2) == 0)
				case what == 6:
					w.DropConnections(id + ":2181")
				case what == 7:
					w.expireOne(r)
				case what == 8:
					l.mu.Lock()
					l.cut[w.deleteOne(r, "/p")] = true
					l.mu.Unlock()
				case what == 9 && r.IntN(4) == 0:
					time.Sleep(5 * time.Minute) // what is empty is reaped
				}
				time.Sleep(time.Duration(r.IntN(9000)) * time.Millisecond)
			}
			w.ClearFaults()
			for id := range 4 {
				w.Heal(fmt.Sprintf("m%d:2181", id))
			}
			time.Sleep(5 * time.Minute)
			owners, n := l.of(shards), 0
			for id, ours := range owners {
				if n += len(ours); stops[id] == nil || len(ours) < len(shards)/len(stops) || len(ours) > len(shards)/len(stops)+1 {
					t.Errorf("seed %d: %d members, %s has %v", seed, len(stops), id, ours)
				}
			}
			if len(owners) != len(stops) || len(stops) > 0 && n != len(shards) {
				t.Errorf("seed %d: %d members, owners %v", seed, len(stops), owners)
			}
			for id, stop := range stops {
				stop()
				<-dones[id]
			}
			if left := w.leftovers("/p"); len(left) > 0 || len(l.of(shards)) > 0 {
				t.Errorf("seed %d: left %v, %v", seed, left, l.of(shards))
			}
		})
	})
}

// A shard whose lock somebody deletes is taken again, and the others stay; a member that
// comes gets its share only after Work has returned.
func TestPartitioner_Moves(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		started, release := make(chan string, 9), make(chan struct{})
		first := w.member(ctx, "a", PartitionerConfig{Path: "/p", Shards: []string{"y", "x"}, Work: func(ctx context.Context, shard string, _ *Hold) {
			started <- fmt.Sprint("a ", shard)
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), ErrReleased) {
				<-release
			}
		}}, nil)
		got := []string{<-started, <-started}
		slices.Sort(got)
		if !slices.Equal(got, []string{"a x", "a y"}) {
			t.Errorf("%v", got)
		}
		time.Sleep(time.Minute)
		children, _ := w.Children("/p/locks/x")
		must(t, w.Delete("/p/locks/x/"+children[0]))
		if again := <-started; again != "a x" {
			t.Errorf("%s after x was lost", again)
		}
		time.Sleep(time.Minute)
		if len(started) > 0 {
			t.Errorf("%s, too", <-started)
		}
		second := w.member(ctx, "b", PartitionerConfig{Path: "/p", Shards: []string{"x", "y"}, Work: func(_ context.Context, shard string, _ *Hold) {
			started <- fmt.Sprint("b ", shard)
		}}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(started) > 0 {
			t.Errorf("%s before a has given it back", <-started)
		}
		close(release)
		if next := <-started; next != "b y" {
			t.Errorf("%s, want b y", next)
		}
		stop()
		<-first
		<-second
	})
}

func TestPartitioner_BadConfig(t *testing.T) {
	for _, cfg := range []PartitionerConfig{
		{Path: "/p", ID: "", Shards: []string{"x"}},
		{Path: "/p", ID: "a/b"},
		{Path: "p", ID: "a"},
		{Path: "/p", ID: "a", Shards: []string{"x", "y", "x"}},
		{Path: "/p", ID: "a", Shards: []string{".."}},
	} {
		if err := NewPartitioner(cfg).Run(t.Context(), nil); !errors.Is(err, session.ErrBadPath) && !errors.Is(err, ErrFormat) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// kazoo's SetPartitioner and ours divide the shards of one path.
func TestInterop_Partitioner(t *testing.T) {
	ctx := testContext(t)
	peer := peers.Kazoo(t, zktest.Shared(t).Addr())
	s, root := dialReal(t), zktest.Root(t)
	l, shards := newLedger(t), []string{"q1", "q2", "q3"}
	run, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- NewPartitioner(PartitionerConfig{Path: root + "/p", ID: "a", Shards: shards, Settle: time.Second, Work: l.work("a")}).Run(run, s)
	}()
	await := func(want ...string) {
		t.Helper()
		for !slices.Equal(l.of(shards)["a"], want) {
			select {
			case <-l.changed:
			case <-ctx.Done():
				t.Fatalf("ours are %v, want %v", l.of(shards), want)
			}
		}
	}
	await("q1", "q2", "q3")
	peer.Tell(t, "partition %s/p z q1 q2 q3", root)
	peer.Expect(ctx, t, "owns q2")
	await("q1", "q3")
	stop()
	must(t, <-done)
	peer.Expect(ctx, t, "owns q1 q2 q3")
	peer.Tell(t, "unpartition")
	peer.Expect(ctx, t, "unpartitioned")
}
