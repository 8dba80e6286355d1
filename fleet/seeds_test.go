package fleet

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// TestSeeds runs whole rollouts in virtual time, of real versions: hosts that fail,
// refuse, hang, crash and come back, go into maintenance, proposers that die, an
// operator who pauses, retries, aborts, rolls back, replaces, publishes in an
// emergency, freezes, plans, collects garbage, another tool that sets ready, and a
// network that loses replies, cuts, lags, is slow and expires sessions. The
// invariants:
//
//   - those of book, after every transaction;
//   - no host uses a version without its own record of having started, or without
//     that ready names it; what it uses has the digest of its version;
//   - the hosts that are in the middle of a use are never more than K;
//   - when the faults are over every rollout comes to its end, or is halted, or was
//     refused in the place of one that had; every host uses what it is to use; and a
//     further rollout brings all to one version, and their subscriptions say so.
func TestSeeds(t *testing.T) {
	testhelp.Seeds(t, 6*time.Second, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
	})
}

// most is how many faults the longest program has. Many short programs find more in a
// given time than few long ones, which meet the same few states again.
const most = 30

func simulate(t *testing.T, seed uint64) {
	w := newSim(t, seed)
	ctx, cancel := context.WithCancel(t.Context())
	w.first(ctx)
	w.trap.set(rand.New(rand.NewPCG(seed, 5)), []int{0, 3, 10, 30}[w.rng.IntN(4)])
	w.server.Hold(w.hold)
	for _, h := range w.hosts {
		w.wg.Go(func() { h.lives(ctx) })
	}
	for _, h := range w.twins {
		until, leave := context.WithCancel(ctx)
		h.leave = leave
		w.wg.Go(func() { h.lives(until) })
	}
	operating, stop := context.WithCancel(ctx)
	var operators sync.WaitGroup
	for i := range 1 + w.rng.IntN(2) {
		operator := rand.New(rand.NewPCG(seed, uint64(30+i)))
		operators.Go(func() { w.operate(operating, operator) })
	}
	if w.rng.IntN(2) == 0 {
		w.slow()
	}
	for range 1 + w.rng.IntN(most) {
		nap(ctx, time.Duration(w.rng.IntN(9000))*time.Millisecond)
		w.fault()
	}
	stop()
	operators.Wait()
	w.calm()
	w.finish(ctx)
	cancel()
	w.wg.Wait()
	w.server.Close()
}

// nap sleeps in virtual time.
func nap(ctx context.Context, d time.Duration) bool { return pace.Sleep(ctx, d) }
