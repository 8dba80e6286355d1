package fleet

import (
	"fmt"
	"testing"
)

// A host that cannot run a check before it uses a version votes for commit and says so.
// The rollout goes on with a canary, whatever its strategy says.
func TestVote_CheckNotRun(t *testing.T) {
	inBubble(t, 6, func(t *testing.T, w *world) {
		w.hosts["web-03"].unchecked = fmt.Errorf("nginx: %w", ErrCheckNotRun)
		state := w.awaitPhase(w.dry(2), PhasePlanned)
		if r := state.Hosts["web-03"]; !r.Unchecked || r.State != HostCommit || r.Error != "nginx: check not run" {
			t.Errorf("in a dry run: %+v", r)
		}
		state = w.awaitPhase(w.propose(3, Strategy{Parallel: 6}), PhaseDone)
		canaries, votes := 0, map[string]int{}
		for _, r := range state.Hosts {
			votes[r.VoteText()]++
			if r.Canary {
				canaries++
			}
			if r.Error != "" {
				t.Errorf("a host that is done has the words %q", r.Error)
			}
		}
		if canaries != 1 || votes["commit (check not run)"] != 1 || votes["commit"] != 5 {
			t.Errorf("%d canaries, votes %v", canaries, votes)
		}
	})
}
