package fleet

import "testing"

// A named canary that voted and then went is dropped after the grace time: it must
// not keep all others from their turns for ever.
func TestRollout_NamedCanaryGoesAfterItsVote(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		hold := make(chan struct{})
		w.hosts["web-00"].hold, w.hosts["web-01"].hold = hold, hold
		name := w.propose(2, Strategy{Parallel: 1, Order: []string{"web-00", "web-01"}})
		w.await("the first canary", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.active) == 1 })
		other := "web-00"
		if w.active[other] {
			other = "web-01"
		}
		w.hosts[other].stop()
		close(hold)
		if state := w.awaitPhase(name, PhaseDone); state.Hosts[other].State != HostCommit || state.Hosts["web-02"].State != HostDone {
			t.Errorf("got %v", state.Hosts)
		}
	})
}
