package fleet

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"
)

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

// observe runs the check while it counts, and returns when the next run is due (0: not
// by time). Runs before a retry do not count.
func (c *coordinator) observe(ctx context.Context) time.Duration {
	o := &c.observer
	if o.check == nil {
		return 0
	}
	if !c.observing() {
		o.next, c.observed, c.failing, c.unsettled = time.Time{}, "", "", false
		return 0
	}
	if o.next.IsZero() || o.round != c.gate.Round {
		left, _ := c.bake()
		o.next, o.round, o.failures = c.now.Add(min(o.check.Interval, max(left, 0))), c.gate.Round, 0
		c.observed, c.failing, c.held = BakePending, "", time.Time{}
	}
	c.unsettled = o.running || c.observed != BakeHolds
	left := o.next.Sub(c.now)
	if o.running || left > 0 {
		return max(left, 0)
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
	return 0
}

// learn takes the result of a run.
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

// bakeWords is what people read of a bake.
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
