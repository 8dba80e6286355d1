package fleet

import (
	"slices"
	"testing"
	"time"
)

// The hosts of a large fleet spread their votes, so that the leader can write them as
// they come. The window stays far below the time in which a vote must come.
func TestVoteWindow(t *testing.T) {
	for _, c := range []struct {
		hosts int
		want  time.Duration
	}{{0, 0}, {1, 0}, {1000, 0}, {2000, 200 * time.Millisecond}, {10_000, 1800 * time.Millisecond}, {100_000, 19800 * time.Millisecond}} {
		if got := VoteWindow(c.hosts); got != c.want || got > DefaultVoteTimeout/3 {
			t.Errorf("%d hosts vote within %s, want %s", c.hosts, got, c.want)
		}
	}
}

// votedAfter returns how long after the proposal each host voted, in order.
func (w *world) votedAfter(name string, began time.Time, hosts int) []time.Duration {
	w.t.Helper()
	var after []time.Duration
	for _, id := range ids(hosts) {
		_, stat, err := w.desk.Get(w.t.Context(), recordPath(root, name, id))
		if err != nil {
			w.t.Fatal(err)
		}
		after = append(after, time.UnixMilli(stat.Ctime).Sub(began))
	}
	slices.Sort(after)
	return after
}

func TestVote_Spread(t *testing.T) {
	const hosts, window = 20, 10 * time.Second
	inBubble(t, hosts, func(t *testing.T, w *world) {
		w.spreadVotes(window)
		began := time.Now()
		name := w.propose(2, Strategy{Parallel: hosts})
		w.awaitPhase(name, PhaseDone)
		after := w.votedAfter(name, began, hosts)
		if first, last := after[0], after[hosts-1]; last > window+time.Second || last-first < window/4 {
			t.Errorf("the first vote came after %s, the last after %s, the window is %s", first, last, window)
		}
	})
}

// A vote comes within half of its timeout, however large the fleet is.
func TestVote_SpreadWithinTheTimeout(t *testing.T) {
	const hosts = 20
	inBubble(t, hosts, func(t *testing.T, w *world) {
		w.spreadVotes(time.Hour)
		began := time.Now()
		name := w.propose(2, Strategy{Parallel: hosts, VoteTimeout: Duration(20 * time.Second)})
		w.awaitPhase(name, PhaseDone)
		if after := w.votedAfter(name, began, hosts); after[hosts-1] > 11*time.Second {
			t.Errorf("the last vote came after %s, want half of the 20 s", after[hosts-1])
		}
	})
}

// A refusal does not wait: it spares the fleet the votes.
func TestVote_RefusalAtOnce(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.spreadVotes(time.Hour)
		w.hosts["web-01"].mu.Lock()
		w.hosts["web-01"].refuse[2] = "no"
		w.hosts["web-01"].mu.Unlock()
		began := time.Now()
		name := w.propose(2, Strategy{VoteTimeout: Duration(time.Hour)})
		state := w.awaitPhase(name, PhaseAborted)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the refusal took %s", took)
		}
		if state.Gate.Host != "web-01" {
			t.Errorf("refused by %q", state.Gate.Host)
		}
	})
}

// A host that comes back while the others vote does not wait again: it does not know
// when it was called.
func TestVote_AtOnceAfterARestart(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		w.spreadVotes(time.Hour)
		name := w.propose(2, Strategy{VoteTimeout: Duration(10 * time.Minute)})
		w.hosts["web-00"].stop()
		began := time.Now()
		w.hosts["web-00"].start()
		w.await("the vote", func() bool {
			state, err := Read(t.Context(), w.desk, root, name)
			return err == nil && state.Hosts["web-00"].State == HostCommit
		})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the vote took %s", took)
		}
		w.awaitPhase(name, PhaseDone)
	})
}
