package recipe

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// round is one round of a double barrier of three, whose members die and are
// replaced.
type round struct {
	w  *world
	wg sync.WaitGroup

	mu      sync.Mutex // mu guards what follows
	members []*entrant
}

// entrant is one member of a round.
type entrant struct {
	p             *process
	entered, left bool
}

const roundSize = 3

// join starts a member, which enters and leaves.
func (r *round) join(t *testing.T, n int, before bool) *entrant {
	t.Helper()
	r.mu.Lock()
	id := fmt.Sprintf("m%d", len(r.members))
	r.mu.Unlock()
	e := &entrant{p: r.w.start(t, id, n, before)}
	r.mu.Lock()
	r.members = append(r.members, e)
	r.mu.Unlock()
	r.wg.Go(func() {
		defer e.p.s.Close()
		b := NewDoubleBarrier(e.p.s, DoubleBarrierConfig{Path: "/d", N: roundSize, ID: id})
		h, err := b.Enter(e.p.ctx)
		if err == nil {
			r.enters(t, e)
			err = b.Leave(e.p.ctx, h)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		e.left = err == nil
		if err != nil && e.p.alive() && !errors.Is(err, ErrRound) {
			t.Errorf("%s: %v", id, err)
		}
	})
	return e
}

// enters notes that a member was let in, which needs that many members whose
// znodes can have stood at once.
func (r *round) enters(t *testing.T, e *entrant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.entered = true
	there := 0
	for _, m := range r.members {
		if m.entered || !m.p.gone() {
			there++
		}
	}
	if there < roundSize {
		t.Errorf("let in with %d members, want %d", there, roundSize)
	}
}

// missing reports how many members must come before the round can begin: some are gone
// without having entered, and no other has entered yet.
func (r *round) missing() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	alive := 0
	for _, m := range r.members {
		if m.entered {
			return 0
		}
		if m.p.alive() {
			alive++
		}
	}
	return roundSize - alive
}

// A member is killed at every request of its entering and leaving, when it comes
// first, between the others, or last. No member enters before three have come, and
// those that live enter and leave.
func TestDoubleBarrier_KilledAtEveryStep(t *testing.T) {
	for victim := range roundSize {
		t.Run(fmt.Sprintf("victim=%d", victim), func(t *testing.T) {
			everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
				r := &round{w: w}
				var doomed *entrant
				for i := range roundSize {
					if i == victim {
						doomed = r.join(t, n, before)
					} else {
						r.join(t, 0, false)
					}
					synctest.Wait()
					time.Sleep(3 * memTimeout) // until the dead are gone
				}
				for r.missing() > 0 {
					r.join(t, 0, false)
					synctest.Wait()
					time.Sleep(3 * memTimeout)
				}
				r.wg.Wait()
				r.end(t)
				return !doomed.p.alive()
			})
		})
	}
}

// All come at once, so that the victim dies while it counts, creates ready, or
// waits for it beside others that do the same.
func TestDoubleBarrier_KilledInTheCrowd(t *testing.T) {
	everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
		r := &round{w: w}
		doomed := r.join(t, n, before)
		for range roundSize - 1 {
			r.join(t, 0, false)
		}
		for synctest.Wait(); ; time.Sleep(3 * memTimeout) {
			if r.missing() == 0 {
				break
			}
			r.join(t, 0, false)
		}
		r.wg.Wait()
		r.end(t)
		return !doomed.p.alive()
	})
}

// end checks that all who lived went in and out, and that nothing is left.
func (r *round) end(t *testing.T) {
	t.Helper()
	settle()
	for i, m := range r.members {
		if m.p.alive() && (!m.entered || !m.left) {
			t.Errorf("member %d: entered %v, left %v", i, m.entered, m.left)
		}
	}
	if left := r.w.leftovers("/d"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
