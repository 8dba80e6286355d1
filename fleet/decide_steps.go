package fleet

import (
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
)

// The steps of a rollout: which hosts are next, when a step is done, and how long its
// hosts are observed before the next one begins.

// next returns the hosts to start next, at most places of them.
func (sc *scene) next(places int) []string {
	if places <= 0 {
		return nil // as most of the time: a look at a large fleet must cost little
	}
	var ids []string
	for id, r := range sc.records {
		if (r.State == HostCommit || r.State == HostWait) && sc.live[id] && !sc.denied[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if sc.gate.Wave == WaveCanary {
		var need int
		ids, need = sc.canaries(ids)
		places = min(places, need)
	}
	if i := slices.Index(ids, sc.agent); i >= 0 { // the coordinator's host comes last
		ids = append(slices.Delete(ids, i, i+1), sc.agent)
	}
	return ids[:max(0, min(places, len(ids)))]
}

// canaries returns the hosts that may go first, and how many more are needed.
func (sc *scene) canaries(ids []string) ([]string, int) {
	strategy := sc.proposal.Strategy
	if len(strategy.Order) > 0 {
		ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(strategy.Order, id) })
		return ids, len(ids)
	}
	need := sc.canary()
	for _, r := range sc.records {
		if r.Canary && r.State != HostSkipped && r.State != HostWait {
			need--
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		if draw(drawCanary, sc.name, a) < draw(drawCanary, sc.name, b) {
			return -1
		}
		return 1
	})
	// Among those that are needed the coordinator's host comes last, too, but it is
	// no other's turn for its sake.
	return ids[:max(0, min(need, len(ids)))], need
}

// advance opens the rollout to all hosts after the bake, and closes it at the end.
func (sc *scene) advance() ([]act, time.Duration) {
	if sc.busy() {
		return nil, 0
	}
	if sc.gate.Wave == WaveCanary {
		return sc.afterBake()
	}
	if waiting, wake := sc.outstanding(sortedKeys(sc.live)); waiting {
		return nil, wake
	}
	gone := map[string]HostRecord{}
	for id, r := range sc.records {
		if r.State == HostStarted && sc.live[id] {
			return nil, 0 // lost, and back: it continues, or fails
		}
		if r.State == HostStarted {
			now := r.HostRecord
			now.State, now.Lost = HostFailed, false
			gone[id] = now
		}
		if sc.unseen(r) {
			return nil, 0
		}
	}
	if len(gone) > 0 {
		return sc.change("fail the absent", gone), 0
	}
	a := sc.close(ResultDone, "")
	a.ready = &trees.Ready{
		Version: sc.proposal.Version, Digest: sc.proposal.Digest, Previous: sc.proposal.Previous, Rollout: sc.name, Hosts: len(sc.live),
	}
	if sc.proposal.Delta.Fits(readyDelta) {
		a.ready.Delta = sc.proposal.Delta
	}
	return []act{a}, 0
}

// outstanding reports whether a live host still has to finish. Skipped hosts do not
// count. A host without a record has the grace time to write one.
func (sc *scene) outstanding(ids []string) (bool, time.Duration) {
	waiting, wake := false, time.Duration(0)
	for _, id := range ids {
		r := sc.records[id]
		if r == nil {
			if left := time.Duration(sc.proposal.Strategy.Grace) - sc.now.Sub(later(sc.seen[id], sc.called)); left > 0 {
				waiting, wake = true, sooner(wake, left)
			}
			continue
		}
		switch r.State {
		case HostDone, HostFailed, HostSkipped:
		case HostStarted:
			waiting = waiting || !r.Lost
		default:
			waiting = true
		}
	}
	return waiting, wake
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// afterBake lets all hosts start when the canaries are done and the bake has passed.
func (sc *scene) afterBake() ([]act, time.Duration) {
	if order := sc.proposal.Strategy.Order; len(order) > 0 {
		var left []string
		wake := time.Duration(0)
		for _, id := range order {
			if sc.live[id] {
				left = append(left, id)
				delete(sc.missing, id)
				continue
			}
			if sc.missing[id].IsZero() {
				sc.missing[id] = sc.now
			}
			r := sc.records[id]
			if patience := time.Duration(sc.proposal.Strategy.Grace) - sc.now.Sub(sc.missing[id]); patience > 0 && (r == nil || r.State == HostCommit || r.State == HostWait) {
				wake = sooner(wake, patience)
			}
		}
		if waiting, soon := sc.outstanding(left); waiting || wake > 0 {
			return nil, sooner(wake, soon)
		}
	} else if _, need := sc.canaries(nil); need > 0 {
		if waiting, wake := sc.outstanding(sortedKeys(sc.live)); waiting {
			return nil, wake
		}
	}
	left, done := sc.bake()
	if done == 0 {
		return []act{sc.halted("", "no canary is done, and none is left")}, 0
	}
	if left > 0 || sc.unsettled {
		return nil, max(left, 0)
	}
	g := sc.gate
	g.Wave, g.By, g.Reason = WaveAll, sc.agent, ""
	return []act{{what: "open to all", gate: &g}}, 0
}

// bake returns the remaining bake time and the number of finished canaries.
func (sc *scene) bake() (time.Duration, int) {
	done, last := 0, time.Time{}
	for _, r := range sc.records {
		if r.Canary && r.State == HostDone {
			done++
			last = later(last, r.since)
		}
	}
	return time.Duration(sc.proposal.Strategy.Bake) - sc.now.Sub(last), done
}

// bakeLeft returns the rest of the bake; 0: the rollout waits for something else.
func (sc *scene) bakeLeft() time.Duration {
	if !sc.baking() {
		return 0
	}
	left, _ := sc.bake()
	return max(left, 0)
}

func (sc *scene) progress() Progress {
	p := Progress{Failures: map[string]string{}, BakeCheck: sc.observed}
	for _, ids := range sc.snapshots {
		p.Counts.Called += len(ids)
	}
	for _, r := range sc.records {
		p.Counts.add(r.HostRecord)
	}
	for _, id := range sortedKeys(sc.records) {
		if r := sc.records[id]; len(p.Failures) < maxFailuresShown && (r.State == HostFailed || r.State == HostAbort || r.Lost) {
			p.Failures[id] = r.Error
		}
	}
	return p
}
