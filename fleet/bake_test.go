package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
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
	testhelp.InTurn(t, 2)
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

// After the bake, the check must succeed after each step before the next one, and after
// the last one. A failure alone only delays when Fall is 2.
func TestBakeCheck_EachStep(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, c := range []struct {
		sick int // the check fails from this host on; 0: never
		want []int
	}{{0, []int{1, 2, 3, 4}}, {3, []int{1, 2}}} {
		inBubble(t, 4, func(t *testing.T, w *world) {
			runs, seen := 0, []int(nil) // only the check, and this goroutine after the end, use them
			name := make(chan string, 1)
			w.checkEvery(func(context.Context) (string, error) {
				rollout := <-name
				name <- rollout
				s, err := Read(t.Context(), w.desk, root, rollout)
				if err != nil {
					return "", err
				}
				if runs++; runs%2 == 1 || c.sick > 0 && begun(s) >= c.sick {
					return "p99 900 ms", errors.New("too slow")
				}
				seen = append(seen, begun(s))
				return "", nil
			})
			w.baking.Fall = 2
			rollout := w.propose(2, Strategy{Parallel: 1, Canary: 1})
			name <- rollout
			state := w.awaitPhase(rollout, PhaseHalted, PhaseDone)
			if !slices.Equal(slices.Compact(seen), c.want) || (state.Phase() == PhaseHalted) != (c.sick > 0) {
				t.Errorf("sick at %d: the check succeeded with %d hosts begun, and the rollout is %s: %s", c.sick, seen, state.Phase(), state.Gate.Reason)
			}
			if c.sick > 0 && (begun(state) != c.sick || !strings.HasSuffix(state.Gate.Reason, "too slow: p99 900 ms")) {
				t.Errorf("%d hosts have begun, reason %q", begun(state), state.Gate.Reason)
			}
		})
	}
}

// A rollout without canaries has no check, so that a way back is not blocked by the fault
// that it is to end.
func TestBakeCheck_NotWithoutCanaries(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.checkEvery(func(context.Context) (string, error) { return "", errors.New("no") })
		if state := w.awaitPhase(w.propose(2, Strategy{Parallel: 3}), PhaseHalted, PhaseDone); state.Phase() != PhaseDone {
			t.Errorf("%s: %s", state.Phase(), state.Gate.Reason)
		}
	})
}

// A rollout that needs a check halts at the bake when its coordinator has none, and
// continues when it has one.
func TestBakeCheck_Needed(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 3, Canary: 1, BakeCheck: true})
		state := w.awaitPhase(name, PhaseHalted, PhaseDone)
		if want := "bake check on " + state.Coordinator + ": its settings have none, and the rollout needs one"; begun(state) != 1 || state.Gate.Reason != want {
			t.Fatalf("%d hosts have begun, reason %q", begun(state), state.Gate.Reason)
		}
		w.checkEvery(func(context.Context) (string, error) { return "", nil })
		h := w.hosts[state.Coordinator]
		h.stop()
		h.start()
		must(t, Retry(t.Context(), w.desk, root, name, Order{}))
		w.awaitPhase(name, PhaseDone)
	})
}
