package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
)

// The decisions of the coordinator. Pure functions of a scene; no I/O.

// scene is a rollout as the coordinator sees it.
type scene struct {
	now         time.Time
	name, agent string
	proposal    Proposal
	gate        Gate
	refused     time.Time // when it was seen refused
	superseded  bool      // another publisher changed ready
	members     int       // of the strategy's group

	shards    map[string][]string // who subscribes, by shard
	snapshots map[string][]string // who was called, by shard
	called    time.Time           // the latest of them
	records   map[string]*hostState
	live      map[string]bool      // who subscribes
	seen      map[string]time.Time // since when
	missing   map[string]time.Time // since when a host that holds a place has no subscription
	withdrawn map[string]int       // grants that were taken back
	denied    map[string]bool      // records that we may not write
	observed  string               // what the bake check has said, as in Progress
	failing   string               // why it fails; empty: it has not failed often enough
	held      time.Time            // when the last run began that succeeded
	unsettled bool                 // its result is not known yet: the bake lasts until it is
	calledAt  time.Time            // when hosts were called last, and how many
	calledN   int
	gateV     int32         // version of the gate
	wake      time.Duration // when to look again; 0: after a change
}

// hostState is a host's record, and since when it is so.
type hostState struct {
	HostRecord
	version int32
	since   time.Time
}

// act is one transaction of the coordinator.
type act struct {
	what       string
	gate       *Gate // the new gate; nil: only check it
	unfrozen   bool  // fails while the config is frozen
	checkReady bool
	ready      *trees.Ready // as it is to be
	closes     bool         // the rollout is not the open one any more
	records    map[string]HostRecord
	calls      []string // shards
	confirm    bool     // read the hosts again first
}

// early reports whether a time has still to pass before something is due, and then wakes
// the coordinator after it.
func (sc *scene) early(left time.Duration) bool {
	if left > 0 && (sc.wake == 0 || left < sc.wake) {
		sc.wake = left
	}
	return left > 0
}

// decide returns the acts to perform now. Without any, wake says when to look again.
func (sc *scene) decide() []act {
	if sc.superseded && sc.gate.State != GateClosed {
		return []act{sc.close(ResultSuperseded, ResultSuperseded+": another version was published meanwhile")}
	}
	switch sc.gate.State {
	case GateVoting, GateOpen, GateHalted:
		if calls, all := sc.callShards(); len(calls) > 0 || !all && sc.gate.State == GateVoting {
			return calls
		}
	}
	switch sc.gate.State {
	case GateVoting:
		return sc.vote()
	case GateRefused:
		// All hosts have time to give their reasons. A rollout that replaced another one stays
		// open: hosts use different versions, so an operator must replace it or publish.
		const patience = 2 * time.Second
		if len(sc.proposal.Replaces) > 0 || len(sc.absent()) > 0 && sc.early(patience-sc.now.Sub(sc.refused)) {
			return nil
		}
		return []act{sc.close(ResultAborted, "")}
	case GateOpen:
		return sc.oversee()
	case GateHalted:
		return sc.watch()
	}
	return nil
}

func (sc *scene) close(result, reason string) act {
	g := sc.gate
	g.State, g.Result, g.Paused, g.By = GateClosed, result, false, sc.agent
	if result == ResultSuperseded {
		g.By = "" // another publisher went past the rollout: its name is unknown here
	}
	if reason != "" {
		g.Host, g.Reason = "", reason
	}
	counts := sc.progress().Counts
	g.Counts = &counts
	for _, id := range sortedKeys(sc.records) {
		switch r := sc.records[id]; {
		case r.State == HostFailed && len(g.Failed) < maxNames:
			g.Failed = append(g.Failed, id)
		case r.State == HostSkipped && len(g.Skipped) < maxNames:
			g.Skipped = append(g.Skipped, id)
		}
	}
	return act{what: "close: " + result, gate: &g, closes: true}
}

// byHealthGate has paused a rollout whose group lost members.
const byHealthGate = "health gate"

// oversee grants turns and watches the hosts that have one, until all are done.
func (sc *scene) oversee() []act {
	if g := sc.gate; sc.proposal.Strategy.Gate != "" && !g.Paused && !g.IgnoreGate && sc.members < g.Members-1 {
		g.Paused, g.By = true, byHealthGate
		g.Reason = fmt.Sprintf(byHealthGate+": %s has %d members, it had %d", sc.proposal.Strategy.Gate, sc.members, g.Members)
		return []act{{what: "pause", gate: &g}}
	}
	duties := []func() []act{sc.watch, sc.halt, sc.retry}
	if sc.gate.runs() {
		duties = append(duties, sc.grant, sc.advance)
	}
	for _, do := range duties {
		if acts := do(); len(acts) > 0 {
			return acts
		}
	}
	return nil
}

// change returns acts like a that write records, split into transactions.
func (sc *scene) change(a act, records map[string]HostRecord) []act {
	var acts []act
	for chunk := range slices.Chunk(sortedKeys(records), maxGrants) {
		a.records = map[string]HostRecord{}
		for _, id := range chunk {
			a.records[id] = records[id]
		}
		acts = append(acts, a)
	}
	return acts
}

// watch finds lost hosts. They keep their places, because they may still be changing.
func (sc *scene) watch() []act {
	lost := map[string]HostRecord{}
	for id, r := range sc.records {
		if sc.live[id] {
			delete(sc.missing, id)
			continue
		}
		if r.State != HostStarted || r.Lost || sc.denied[id] || sc.mayReturn(id) {
			continue // afterBake dates those of the named canaries
		}
		now := r.HostRecord
		now.Lost = true
		now.Error = fmt.Sprintf("absent for %s after it started", time.Duration(sc.proposal.Strategy.Grace))
		lost[id] = now
	}
	return sc.change(act{what: "lost", confirm: true}, lost)
}

// mayReturn reports whether a host without a subscription is within its grace time.
func (sc *scene) mayReturn(id string) bool {
	if sc.missing[id].IsZero() {
		sc.missing[id] = sc.now
	}
	return sc.early(time.Duration(sc.proposal.Strategy.Grace) - sc.now.Sub(sc.missing[id]))
}

// halt stops the rollout when the bake check fails, after MaxFailures, or when lost
// hosts hold all places.
func (sc *scene) halt() []act {
	if sc.failing != "" && sc.observing() {
		return []act{sc.halted("", sc.failing)}
	}
	failures, lost, first := 0, 0, ""
	for id, r := range sc.records {
		if r.Lost && r.State == HostStarted {
			lost++
		}
		if r.Round == sc.gate.Round && (r.State == HostFailed || r.Lost && r.State == HostStarted) {
			failures++
			if first == "" || id < first {
				first = id
			}
		}
	}
	if failures < sc.proposal.Strategy.MaxFailures && lost < sc.proposal.Strategy.Parallel || first == "" {
		return nil
	}
	return []act{sc.halted(first, sc.records[first].Error)}
}

func (sc *scene) halted(host, reason string) act { return sc.stopped("halt", GateHalted, host, reason) }

func (sc *scene) refuse(reason string) act { return sc.stopped("refuse", GateRefused, "", reason) }

func (sc *scene) stopped(what, state, host, reason string) act {
	g := sc.gate
	g.State, g.Paused, g.Host, g.Reason, g.By = state, false, host, clip(reason), sc.agent
	return act{what: what, gate: &g}
}

// stuck says why the rollout waits for an operator who has not stopped it for a while
// on purpose; empty: it does not.
func (sc *scene) stuck() string {
	s := State{Proposal: sc.proposal, Gate: sc.gate}
	phase := s.Phase()
	if phase != PhaseHalted && phase != PhaseRefused && (phase != PhasePaused || sc.gate.By != byHealthGate) {
		return ""
	}
	return clip(fmt.Sprintf("version %d is %s: %s", sc.proposal.Version, phase, s.Reason()))
}

// retry lets the failed hosts of previous rounds try again.
func (sc *scene) retry() []act {
	again := map[string]HostRecord{}
	for id, r := range sc.records {
		if r.Round >= sc.gate.Round || sc.denied[id] {
			continue
		}
		now := r.HostRecord
		switch r.State {
		case HostFailed:
			again[id] = HostRecord{State: HostWait, Version: r.Version, From: r.From, Round: sc.gate.Round}
		case HostStarted:
			now.Round, now.Lost, now.Error = sc.gate.Round, false, ""
			again[id] = now
		}
	}
	return sc.change(act{what: "retry"}, again)
}

// grant lets hosts start. It takes back grants that hosts do not use.
func (sc *scene) grant() []act {
	strategy := sc.proposal.Strategy
	places := strategy.Parallel
	back, renew := map[string]HostRecord{}, map[string]HostRecord{}
	for id, r := range sc.records {
		now := r.HostRecord
		switch {
		case r.State == HostGranted && r.Gate != sc.gateV:
			places--
			if !sc.denied[id] {
				now.Gate, now.Round = sc.gateV, sc.gate.Round
				renew[id] = now
			}
		case r.State == HostGranted:
			places--
			if !sc.early(time.Duration(strategy.Grace)-sc.now.Sub(r.since)) && !sc.denied[id] {
				back[id] = sc.takeBack(id, now)
			}
		case r.State == HostStarted:
			places--
		case sc.unseen(r), r.State == HostDone && sc.early(time.Duration(strategy.Pause)-sc.now.Sub(r.since)):
			places--
		}
	}
	if len(renew) > 0 {
		return sc.change(act{what: "grant again"}, renew)
	}
	if len(back) > 0 {
		return sc.change(act{what: "take back"}, back)
	}
	if sc.gate.Wave == WaveAll && sc.observed == BakePending {
		places = 0
	}
	granted := map[string]HostRecord{}
	for _, id := range sc.next(places) {
		now := sc.records[id].HostRecord
		now.State, now.Gate, now.Round, now.Error, now.Canary = HostGranted, sc.gateV, sc.gate.Round, "", sc.gate.Wave == WaveCanary
		granted[id] = now
	}
	return sc.change(act{what: "grant", checkReady: true}, granted)
}

// takeBack lets a host that did not use its grant wait again, and the second time skips it.
func (sc *scene) takeBack(id string, now HostRecord) HostRecord {
	now.State, now.Gate, now.Canary = HostWait, 0, false
	if sc.withdrawn[id] > 0 {
		now.State = HostSkipped
		now.Error = fmt.Sprintf("did not start within %s of its grant, twice", time.Duration(sc.proposal.Strategy.Grace))
	}
	return now
}

// callShards calls the subscribers of the shards that have no call yet. It reports
// whether all are called then.
func (sc *scene) callShards() ([]act, bool) {
	var acts []act
	for _, shard := range sortedKeys(sc.shards) {
		ids := sc.shards[shard]
		if _, called := sc.snapshots[shard]; called || len(ids) == 0 {
			continue
		}
		if since := sc.now.Sub(sc.calledAt); since >= time.Second {
			sc.calledAt, sc.calledN = sc.now, 0
		} else if sc.calledN+len(ids) > callRate && sc.calledN > 0 {
			return acts, !sc.early(time.Second - since)
		}
		sc.calledN += len(ids)
		acts = append(acts, act{what: "call", calls: []string{shard}})
	}
	return acts, true
}

func (sc *scene) absent() []string {
	var absent []string
	for _, ids := range sc.snapshots {
		for _, id := range ids {
			if r := sc.records[id]; r == nil || r.State != HostCommit && r.State != HostSkipped && r.State != HostAbort {
				absent = append(absent, id)
			}
		}
	}
	slices.Sort(absent)
	return absent
}

// vote decides once every called host has answered or the time is up. A host that does
// not answer is a refusal unless the strategy skips absent hosts.
func (sc *scene) vote() []act {
	strategy := sc.proposal.Strategy
	if absent := sc.absent(); len(absent) > 0 {
		if sc.early(time.Duration(strategy.VoteTimeout) - sc.now.Sub(sc.called)) {
			return nil
		}
		if strategy.Absent != AbsentSkip && !sc.proposal.Dry {
			return []act{sc.refuse(fmt.Sprintf("no vote within %s from %s", time.Duration(strategy.VoteTimeout), someNames(absent)))}
		}
	}
	if sc.proposal.Dry {
		return []act{sc.close(ResultPlanned, "")}
	}
	commits, canaries := 0, 0
	for id, r := range sc.records {
		switch r.State {
		case HostAbort:
			return nil // the gate that was read is old: it was refused
		case HostCommit:
			commits++
			if slices.Contains(strategy.Order, id) {
				canaries++
			}
		}
	}
	switch {
	case commits == 0:
		return []act{sc.refuse(ErrNobody.Error() + ": all subscribers are in maintenance")}
	case len(strategy.Order) > 0 && canaries == 0:
		return []act{sc.refuse("none of the canaries checks the version: " + someNames(strategy.Order))}
	case sc.gate.Paused:
		return nil
	}
	g := sc.gate
	g.State, g.Wave, g.Members, g.By, g.Reason = GateOpen, WaveAll, sc.members, sc.agent, ""
	if n := sc.canary(); n > 0 && n < len(sc.live) {
		g.Wave = WaveCanary
	}
	return []act{{what: "commit", gate: &g, unfrozen: true, checkReady: true}}
}

// canary is how many hosts go first. A host that could not run all checks is the first to
// find out, so there is a canary then, whatever the strategy says.
func (sc *scene) canary() int {
	n := sc.proposal.Strategy.Canary
	for _, r := range sc.records {
		if r.Unchecked {
			return max(n, 1)
		}
	}
	return n
}

func someNames(ids []string) string {
	if len(ids) > maxFailuresShown {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:maxFailuresShown], ", "), len(ids)-maxFailuresShown)
	}
	return strings.Join(ids, ", ")
}
