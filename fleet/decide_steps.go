package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
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
		return cmp.Compare(draw(drawCanary, sc.name, a), draw(drawCanary, sc.name, b))
	})
	// Among those that are needed the coordinator's host comes last, too, but it is
	// no other's turn for its sake.
	return ids[:max(0, min(need, len(ids)))], need
}

// advance opens the rollout to all hosts after the bake, and closes it at the end.
func (sc *scene) advance() []act {
	if sc.busy() {
		return nil
	}
	if sc.gate.Wave == WaveCanary {
		return sc.afterBake()
	}
	if sc.outstanding(sortedKeys(sc.live)) {
		return nil
	}
	gone := map[string]HostRecord{}
	for id, r := range sc.records {
		if sc.unseen(r) || r.State == HostStarted && sc.live[id] {
			return nil // a lost one that is back continues, or fails
		}
		if r.State == HostStarted {
			now := r.HostRecord
			now.State, now.Lost = HostFailed, false
			gone[id] = now
		}
	}
	if len(gone) > 0 {
		return sc.change(act{what: "fail the absent"}, gone)
	}
	a := sc.close(ResultDone, "")
	a.ready = &trees.Ready{
		Version: sc.proposal.Version, Digest: sc.proposal.Digest, Previous: sc.proposal.Previous, Rollout: sc.name, Hosts: len(sc.live),
	}
	if sc.proposal.Delta.Fits(readyDelta) {
		a.ready.Delta = sc.proposal.Delta
	}
	return []act{a}
}

// outstanding reports whether a live host still has to finish. Skipped hosts do not
// count. A host without a record has the grace time to write one.
func (sc *scene) outstanding(ids []string) bool {
	waiting := false
	for _, id := range ids {
		switch r := sc.records[id]; {
		case r == nil:
			waiting = sc.early(time.Duration(sc.proposal.Strategy.Grace)-sc.now.Sub(later(sc.seen[id], sc.called))) || waiting
		case r.State != HostDone && r.State != HostFailed && r.State != HostSkipped && (r.State != HostStarted || !r.Lost):
			waiting = true
		}
	}
	return waiting
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// afterBake lets all hosts start when the canaries are done and the bake has passed.
func (sc *scene) afterBake() []act {
	if order := sc.proposal.Strategy.Order; len(order) > 0 {
		var here []string
		waiting := false
		for _, id := range order {
			r := sc.records[id]
			switch {
			case sc.live[id]:
				here = append(here, id)
				delete(sc.missing, id)
			case r == nil || r.State == HostCommit || r.State == HostWait:
				waiting = sc.mayReturn(id) || waiting
			}
		}
		if sc.outstanding(here) || waiting {
			return nil
		}
	} else if _, need := sc.canaries(nil); need > 0 && sc.outstanding(sortedKeys(sc.live)) {
		return nil
	}
	left, done := sc.bake()
	if done == 0 {
		return []act{sc.halted("", "no canary is done, and none is left")}
	}
	if sc.early(left) || sc.unsettled {
		return nil
	}
	g := sc.gate
	g.Wave, g.By, g.Reason = WaveAll, sc.agent, ""
	return []act{{what: "open to all", gate: &g}}
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

// BakeCheck observes the service while a version bakes on the canaries, and then until
// the rollout ends. The coordinator runs its own: the check comes from the settings of
// its host, never from ZooKeeper.
type BakeCheck struct {
	// Run returns nil while all is well, and in both cases an output for people. It
	// returns soon after ctx ends. Calls do not overlap.
	Run      func(ctx context.Context) (output string, err error)
	Interval time.Duration // before the first run, and between two runs
	Timeout  time.Duration // of one run
	Fall     int           // so many failures in a row halt the rollout; 0: the first one
}

// noBakeCheck fails on a host without a check, in a rollout that needs one.
var noBakeCheck = &BakeCheck{Run: func(context.Context) (string, error) {
	return "", errors.New("its settings have none, and the rollout needs one")
}}

// What a bake check has said, as in Progress.
const (
	BakePending = "pending" // it has not run yet, or the last run failed
	BakeHolds   = "holds"
)

// observer runs the bake check. Only the goroutine of the coordinator uses it; each run
// has a goroutine of its own, so that the coordinator still follows its hosts.
type observer struct {
	check    *BakeCheck // nil: none
	round    int        // of the gate, since the check is observed
	next     time.Time  // of the next run; zero: the check is not observed
	running  bool
	failures int // in a row
	results  chan observation
	wg       sync.WaitGroup
}

// observation is the result of one run.
type observation struct {
	began  time.Time
	round  int // as the run began
	output string
	err    error
}

// observe runs the check while it counts. Runs before a retry do not count.
func (c *coordinator) observe(ctx context.Context) {
	o := &c.observer
	if o.check == nil {
		return
	}
	if !c.observing() {
		o.next, c.observed, c.failing, c.unsettled = time.Time{}, "", "", false
		return
	}
	if o.next.IsZero() || o.round != c.gate.Round {
		left, _ := c.bake()
		o.next, o.round, o.failures = c.now.Add(min(o.check.Interval, max(left, 0))), c.gate.Round, 0
		c.observed, c.failing, c.held = BakePending, "", time.Time{}
	}
	c.unsettled = o.running || c.observed != BakeHolds
	if c.early(o.next.Sub(c.now)) || o.running {
		return
	}
	o.running, c.unsettled = true, true
	began, round := c.now, o.round
	o.wg.Go(func() {
		limited, cancel := context.WithTimeout(ctx, o.check.Timeout)
		defer cancel()
		output, err := o.check.Run(limited)
		if ctx.Err() == nil { // otherwise the coordinator has ended, which says nothing of the service
			o.results <- observation{began, round, output, err}
		}
	})
}

func (c *coordinator) learn(r observation) {
	o := &c.observer
	o.running = false
	if o.next.IsZero() || r.round != o.round {
		return
	}
	o.next = time.Now().Add(o.check.Interval)
	if r.err == nil {
		c.observed, c.held, o.failures = BakeHolds, r.began, 0
		return
	}
	c.observed = BakePending
	if o.failures++; o.failures >= o.check.Fall {
		words := strings.Join(strings.Fields(r.output), " ")
		c.failing = strings.TrimSuffix("bake check on "+c.agent+": "+r.err.Error()+": "+words, ": ")
	}
}

// observing reports whether the bake check counts: while the version bakes, and then to
// the end. A rollout without canaries goes to all hosts in haste, and has no check.
func (sc *scene) observing() bool {
	return sc.baking() || sc.gate.State == GateOpen && sc.gate.Wave == WaveAll && sc.proposal.Strategy.Canary > 0
}

// unseen reports whether the bake check has not succeeded since a host was done. Such
// a host keeps its place, so that the check sees each step before the next one.
func (sc *scene) unseen(r *hostState) bool {
	return sc.gate.Wave == WaveAll && sc.observed != "" && r.State == HostDone && !sc.held.After(r.since)
}

// baking reports whether a canary is done and no host has a turn before the other hosts
// may start.
func (sc *scene) baking() bool {
	if sc.gate.State != GateOpen || sc.gate.Wave != WaveCanary || sc.busy() {
		return false
	}
	_, done := sc.bake()
	return done > 0
}

// busy reports whether a host has a turn. A lost one does not count.
func (sc *scene) busy() bool {
	for _, r := range sc.records {
		if r.State == HostGranted || r.State == HostStarted && !r.Lost {
			return true
		}
	}
	return false
}

func bakeWords(left time.Duration, check string) string {
	text := ""
	if left > 0 {
		text = "baking, " + inWords(left) + " left"
	}
	switch {
	case check == BakeHolds && text != "":
		text += ", the bake check holds"
	case check != "":
		text = cmp.Or(text, "baking") + ", waiting for the bake check"
	}
	return text
}
