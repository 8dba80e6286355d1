package fleet

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// checkEvery makes the coordinator run a check every 10 s of a bake, for at most 5 s.
func (w *world) checkEvery(run func(ctx context.Context) (string, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.baking = &BakeCheck{Run: run, Interval: 10 * time.Second, Timeout: 5 * time.Second}
}

// A failure of the bake check halts the rollout with the words of the check, before a
// second host starts. A retry checks again, and the bake ends when the check holds.
func TestBakeCheck_FailureHalts(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		var runs, sick atomic.Int32
		w.checkEvery(func(context.Context) (string, error) {
			if runs.Add(1); sick.Load() > 0 {
				return "5xx rate\n7 %", errors.New("exit status 1")
			}
			return "5xx rate 0 %", nil
		})
		name := w.propose(2, Strategy{Parallel: 4, Canary: 1, Bake: Duration(90 * time.Second)})
		w.await("the check to hold", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && strings.HasSuffix(s.Waiting(time.Now()).Text, "left, the bake check holds")
		})
		sick.Store(1)
		state := w.awaitPhase(name, PhaseHalted)
		if got := state.Gate.Reason; !strings.HasPrefix(got, "bake check on web-0") || !strings.HasSuffix(got, ": exit status 1: 5xx rate 7 %") {
			t.Errorf("got the reason %q", got)
		}
		if n := begun(state); n != 1 {
			t.Errorf("%d hosts have started, want the canary", n)
		}
		before := runs.Load()
		time.Sleep(time.Minute) // virtual: a rollout that has halted bakes nothing
		if runs.Load() != before {
			t.Error("the check runs although nothing bakes")
		}
		sick.Store(0)
		if err := Retry(t.Context(), w.desk, root, name, Order{}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(name, PhaseDone)
		if runs.Load() == before {
			t.Error("the other hosts have started without a check after the retry")
		}
	})
}

// A check that hangs is ended after its time and counts as failed, also when the bake
// ends meanwhile.
func TestBakeCheck_HangingCheckHaltsAtTheEndOfTheBake(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		var runs atomic.Int32
		w.checkEvery(func(ctx context.Context) (string, error) {
			if runs.Add(1) == 1 {
				return "", nil
			}
			<-ctx.Done()
			return "", errors.New("not done in time")
		})
		name := w.propose(2, Strategy{Parallel: 3, Canary: 1, Bake: Duration(22 * time.Second)})
		if state := w.awaitPhase(name, PhaseHalted, PhaseDone); begun(state) != 1 || !strings.HasSuffix(state.Gate.Reason, "not done in time") {
			t.Errorf("got %d hosts, reason %q", begun(state), state.Gate.Reason)
		}
	})
}

// Without a bake, the check must hold once before the other hosts start.
func TestBakeCheck_NoBake(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.checkEvery(func(context.Context) (string, error) { return "", errors.New("no") })
		name := w.propose(2, Strategy{Parallel: 3, Canary: 1})
		if state := w.awaitPhase(name, PhaseHalted, PhaseDone); begun(state) != 1 {
			t.Errorf("%d hosts have started", begun(state))
		}
	})
}
