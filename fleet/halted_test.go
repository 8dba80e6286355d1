package fleet

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// halt is what a host knows of a rollout that waits for an operator.
type halt struct {
	why   string
	since time.Time
}

func (h *simpleHost) halted(why string, since time.Time) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.halts == nil {
		h.w.halts = map[string]halt{}
	}
	if h.w.halts[h.id].why == why {
		return // as a condition keeps its beginning
	}
	if h.w.halts[h.id] = (halt{why, since}); why == "" {
		delete(h.w.halts, h.id)
	}
}

// halted waits until one host reports a halt, with the words, and returns it. Empty words:
// until no host does.
func (w *world) halted(want string) (string, halt) {
	w.t.Helper()
	var now map[string]halt
	var host string
	var is halt
	w.await("the halt "+want, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		now, is = maps.Clone(w.halts), halt{}
		for id, h := range now {
			host, is = id, h
		}
		return is.why == want && len(now) < 2
	}, func() string { return fmt.Sprint(now) })
	return host, is
}

// near fails the test unless both times are the same, but for the time of a request.
func near(t *testing.T, got, want time.Time) {
	t.Helper()
	if d := got.Sub(want).Abs(); d > time.Second {
		t.Errorf("halted at %s, got since %s", want, got)
	}
}

// haltAt begins a rollout of version 2, which fails on the second host.
func (w *world) haltAt() string {
	for _, h := range w.hosts {
		h.mu.Lock()
		h.fail[2] = "no space left"
		h.mu.Unlock()
	}
	w.halted("")
	return w.propose(2, Strategy{Parallel: 1})
}

func (w *world) repair() {
	for _, h := range w.hosts {
		h.mu.Lock()
		delete(h.fail, 2)
		h.mu.Unlock()
	}
}

// The host that coordinates a rollout reports that it has halted, where and why, until an
// operator has dealt with it. No other host does.
func TestHalted_Reported(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(w *world, name string) error{
		"retried": func(w *world, name string) error {
			w.repair()
			return Retry(w.t.Context(), w.desk, root, name, Order{})
		},
		"rolled back": func(w *world, name string) error { w.replaceWith(3, name); return nil },
		"passed by an emergency": func(w *world, name string) error {
			state, err := Head(w.t.Context(), w.desk, root, name)
			if err == nil {
				_, err = w.desk.Multi(w.t.Context(), state.close(ResultSuperseded, "ann", false)...)
			}
			return err
		},
		"left behind by ready": func(w *world, _ string) error { w.setReady(4); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, w *world) {
				name := w.haltAt()
				state := w.awaitPhase(name, PhaseHalted)
				host, is := w.halted("version 2 is halted: " + state.Reason())
				if host != state.Coordinator {
					t.Errorf("%s reports it, %s coordinates", host, state.Coordinator)
				}
				near(t, is.since, state.GateAt.Time)
				must(t, end(w, name))
				w.halted("")
			})
		})
	}
}

// Another coordinator reports the halt, since it began, and the one before it does not:
// not when its agent stops, nor when its session has expired.
func TestHalted_SurvivesTheCoordinator(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	inBubble(t, 4, func(t *testing.T, w *world) {
		state := w.awaitPhase(w.haltAt(), PhaseHalted)
		want := "version 2 is halted: " + state.Reason()
		for n := range 4 {
			time.Sleep(5 * time.Minute) // virtual
			first, _ := w.halted(want)
			if n%2 == 0 {
				node, err := w.server.Get(SubscriptionPath(root, first))
				must(t, err)
				w.server.ExpireSession(node.Stat.EphemeralOwner)
				<-w.hosts[first].stopped
			}
			w.hosts[first].stop()
			w.hosts[first].start()
			time.Sleep(time.Second) // virtual
			second, is := w.halted(want)
			if first == second {
				t.Fatalf("%s reports it still", first)
			}
			near(t, is.since, state.GateAt.Time)
		}
	})
}

// During an outage the halt stays reported, and after it one host reports it.
func TestHalted_Outage(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		state := w.awaitPhase(w.haltAt(), PhaseHalted)
		want := "version 2 is halted: " + state.Reason()
		first, _ := w.halted(want)
		w.server.RefuseDial()
		w.server.DropConnections()
		for range 8 {
			time.Sleep(time.Second) // virtual: less than the session timeout
			if host, _ := w.halted(want); host != first {
				t.Fatalf("%s reports it", host)
			}
		}
		w.server.Heal()
		time.Sleep(time.Minute) // virtual
		_, is := w.halted(want)
		near(t, is.since, state.GateAt.Time)
	})
}

// A replacement that is refused, and a pause of the health gate, wait for an operator as
// well. A pause of an operator does not.
func TestHalted_OtherWays(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			h.mu.Lock()
			h.refuse[3] = "bad"
			h.mu.Unlock()
		}
		name := w.haltAt()
		w.awaitPhase(name, PhaseHalted)
		name = w.replaceWith(3, name)
		state := w.awaitPhase(name, PhaseRefused)
		w.halted("version 3 is refused: " + state.Reason())
		w.setReady(4)
		w.halted("")

		for _, member := range []string{"a", "b", "c"} {
			must(t, w.server.Create("/services/web/"+member, nil))
		}
		w.repair()
		name = w.propose(2, Strategy{Parallel: 1, Canary: 1, Bake: Duration(time.Hour), Gate: "/services/web"})
		w.awaitPhase(name, PhaseRolling)
		must(t, Pause(t.Context(), w.desk, root, name, Order{By: "ann", Reason: "lunch"}))
		time.Sleep(time.Minute) // virtual
		w.halted("")
		must(t, Resume(t.Context(), w.desk, root, name, Order{}))
		for _, member := range []string{"a", "b"} {
			must(t, w.server.Delete("/services/web/"+member))
		}
		w.halted("version 2 is paused: " + w.awaitPhase(name, PhasePaused).Reason())
		must(t, Resume(t.Context(), w.desk, root, name, Order{IgnoreGate: true}))
		w.halted("")
	})
}
