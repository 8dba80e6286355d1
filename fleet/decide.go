package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
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
	called    time.Time           // the newest of them
	records   map[string]*hostState
	live      map[string]bool      // who subscribes
	seen      map[string]time.Time // since when
	missing   map[string]time.Time // since when a host that holds a place has no subscription
	withdrawn map[string]int       // grants that were taken back
	denied    map[string]bool      // records that we may not write
	relist    time.Duration        // when a shard may be listed again; 0: none waits
	calledAt  time.Time            // when hosts were called last, and how many
	calledN   int
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
	ready      *config.Ready // as it is to be
	closes     bool          // the rollout is not the open one any more
	records    map[string]HostRecord
	calls      []string // shards
	confirm    bool     // read the hosts again first
}

// decide returns the acts to perform now, and the time until the next look at the
// latest (0: when something changes).
func (c *coordinator) decide() ([]act, time.Duration) {
	acts, wake := c.scene.decide(c.gateV)
	wake = sooner(wake, c.relist)
	c.relist = 0
	return acts, wake
}

func (sc *scene) decide(gateV int32) ([]act, time.Duration) {
	if sc.gate.State == GateClosed {
		return nil, 0
	}
	if sc.superseded {
		return []act{sc.close(ResultSuperseded, ResultSuperseded+": another version was published meanwhile")}, 0
	}
	wake := time.Duration(0)
	if sc.gate.State != GateRefused {
		calls, left := sc.callShards()
		if len(calls) > 0 {
			return calls, 0
		}
		wake = left
	}
	var acts []act
	var left time.Duration
	switch sc.gate.State {
	case GateVoting:
		acts, left = sc.vote()
	case GateRefused:
		acts, left = sc.endRefused()
	case GateOpen:
		acts, left = sc.oversee(gateV)
	case GateHalted:
		acts, left = sc.watch()
	}
	return acts, sooner(wake, left)
}

// close ends the rollout.
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

// callShards calls the subscribers of the shards that have no call yet.
func (sc *scene) callShards() ([]act, time.Duration) {
	var acts []act
	for _, shard := range sortedKeys(sc.shards) {
		ids := sc.shards[shard]
		if len(ids) == 0 || sc.snapshots[shard] != nil {
			continue
		}
		if since := sc.now.Sub(sc.calledAt); since >= time.Second {
			sc.calledAt, sc.calledN = sc.now, 0
		} else if sc.calledN+len(ids) > callRate && sc.calledN > 0 {
			return acts, time.Second - since
		}
		sc.calledN += len(ids)
		acts = append(acts, act{what: "call", calls: []string{shard}})
	}
	return acts, 0
}

// uncalled reports whether a shard with subscribers has no call yet.
func (sc *scene) uncalled() bool {
	for shard, ids := range sc.shards {
		if len(ids) > 0 && sc.snapshots[shard] == nil {
			return true
		}
	}
	return false
}

// absent returns the called hosts that have not answered.
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

// vote decides once every called host has answered or the time is up.
func (sc *scene) vote() ([]act, time.Duration) {
	if sc.uncalled() {
		return nil, 0
	}
	strategy := sc.proposal.Strategy
	absent := sc.absent()
	if left := time.Duration(strategy.VoteTimeout) - sc.now.Sub(sc.called); len(absent) > 0 {
		if left > 0 {
			return nil, left
		}
		if strategy.Absent != AbsentSkip && !sc.proposal.Dry {
			return []act{sc.refuse(fmt.Sprintf("no vote within %s from %s", time.Duration(strategy.VoteTimeout), someNames(absent)))}, 0
		}
	}
	if sc.proposal.Dry {
		return []act{sc.close(ResultPlanned, "")}, 0
	}
	commits, canaries := 0, 0
	for id, r := range sc.records {
		switch r.State {
		case HostAbort:
			return nil, 0 // the gate that was read is old: it was refused
		case HostCommit:
			commits++
			if contains(strategy.Order, id) {
				canaries++
			}
		}
	}
	switch {
	case commits == 0:
		return []act{sc.refuse(ErrNobody.Error() + ": all subscribers are in maintenance")}, 0
	case len(strategy.Order) > 0 && canaries == 0:
		return []act{sc.refuse("none of the canaries checks the version: " + someNames(strategy.Order))}, 0
	case sc.gate.Paused:
		return nil, 0
	}
	g := sc.gate
	g.State, g.Wave, g.Members, g.By, g.Reason = GateOpen, WaveAll, sc.members, sc.agent, ""
	if strategy.Canary > 0 && strategy.Canary < len(sc.live) {
		g.Wave = WaveCanary
	}
	return []act{{what: "commit", gate: &g, unfrozen: true, checkReady: true}}, 0
}

// someNames joins the first names.
func someNames(ids []string) string {
	if len(ids) > maxFailuresShown {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:maxFailuresShown], ", "), len(ids)-maxFailuresShown)
	}
	return strings.Join(ids, ", ")
}

// refuse refuses the version.
func (sc *scene) refuse(reason string) act {
	g := sc.gate
	g.State, g.Paused, g.Host, g.Reason, g.By = GateRefused, false, "", clip(reason), sc.agent
	return act{what: "refuse", gate: &g}
}

// endRefused closes a refused rollout after all hosts had time to give their
// reasons. A rollout that replaced another one stays open: hosts use different
// versions, so an operator must replace it or publish.
func (sc *scene) endRefused() ([]act, time.Duration) {
	const patience = 2 * time.Second
	if len(sc.proposal.Replaces) > 0 {
		return nil, 0
	}
	if left := patience - sc.now.Sub(sc.refused); left > 0 && len(sc.absent()) > 0 {
		return nil, left
	}
	return []act{sc.close(ResultAborted, "")}, 0
}

// oversee grants turns and watches the hosts that have one, until all are done.
func (sc *scene) oversee(gateV int32) ([]act, time.Duration) {
	if g := sc.gate; sc.proposal.Strategy.Gate != "" && !g.Paused && !g.IgnoreGate && sc.members < g.Members-1 {
		g.Paused, g.By = true, "health gate"
		g.Reason = fmt.Sprintf("health gate: %s has %d members, it had %d", sc.proposal.Strategy.Gate, sc.members, g.Members)
		return []act{{what: "pause", gate: &g}}, 0
	}
	acts, wake := sc.watch()
	if len(acts) == 0 {
		acts = sc.halt()
	}
	if len(acts) == 0 {
		acts = sc.retry()
	}
	if len(acts) > 0 || !sc.gate.runs() {
		return acts, wake
	}
	acts, left := sc.grant(gateV)
	wake = sooner(wake, left)
	if len(acts) > 0 {
		return acts, wake
	}
	acts, left = sc.advance()
	return acts, sooner(wake, left)
}

// change returns acts that write records, split into transactions.
func (sc *scene) change(what string, records map[string]HostRecord) []act {
	var acts []act
	for chunk := range slices.Chunk(sortedKeys(records), maxGrants) {
		a := act{what: what, records: map[string]HostRecord{}}
		for _, id := range chunk {
			a.records[id] = records[id]
		}
		acts = append(acts, a)
	}
	return acts
}

// watch finds hosts with a turn that have been absent for too long. A lost host
// keeps its place, because it may still be changing.
func (sc *scene) watch() ([]act, time.Duration) {
	grace, wake := time.Duration(sc.proposal.Strategy.Grace), time.Duration(0)
	lost := map[string]HostRecord{}
	for id, r := range sc.records {
		if r.State != HostStarted || sc.live[id] {
			delete(sc.missing, id)
			continue
		}
		if r.Lost || sc.denied[id] {
			continue
		}
		if sc.missing[id].IsZero() {
			sc.missing[id] = sc.now
		}
		if left := grace - sc.now.Sub(sc.missing[id]); left > 0 {
			wake = sooner(wake, left)
			continue
		}
		now := r.HostRecord
		now.Lost = true
		now.Error = fmt.Sprintf("absent for %s after it started", grace)
		lost[id] = now
	}
	acts := sc.change("lost", lost)
	for i := range acts {
		acts[i].confirm = true
	}
	return acts, wake
}

// halt stops the rollout when its round has MaxFailures failures, or when lost
// hosts hold all places.
func (sc *scene) halt() []act {
	failures, lost, first := 0, 0, ""
	for _, id := range sortedKeys(sc.records) {
		r := sc.records[id]
		if r.Lost && r.State == HostStarted {
			lost++
		}
		if r.Round == sc.gate.Round && (r.State == HostFailed || r.Lost && r.State == HostStarted) {
			failures++
			if first == "" {
				first = id
			}
		}
	}
	if failures < sc.proposal.Strategy.MaxFailures && lost < sc.proposal.Strategy.Parallel || first == "" {
		return nil
	}
	return []act{sc.halted(first, sc.records[first].Error)}
}

func (sc *scene) halted(host, reason string) act {
	g := sc.gate
	g.State, g.Paused, g.Host, g.Reason, g.By = GateHalted, false, host, clip(reason), sc.agent
	return act{what: "halt", gate: &g}
}

// retry lets the failed hosts of former rounds try again.
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
	return sc.change("retry", again)
}

// grant lets as many hosts start as the strategy allows. It takes back grants that
// hosts do not use.
func (sc *scene) grant(gateV int32) ([]act, time.Duration) {
	strategy, wake := sc.proposal.Strategy, time.Duration(0)
	places := strategy.Parallel
	back, renew := map[string]HostRecord{}, map[string]HostRecord{}
	for id, r := range sc.records {
		now := r.HostRecord
		switch {
		case r.State == HostGranted && r.Gate != gateV:
			places--
			if !sc.denied[id] {
				now.Gate, now.Round = gateV, sc.gate.Round
				renew[id] = now
			}
		case r.State == HostGranted:
			places--
			left := time.Duration(strategy.Grace) - sc.now.Sub(r.since)
			if left > 0 {
				wake = sooner(wake, left)
			} else if !sc.denied[id] {
				back[id] = sc.takeBack(id, now)
			}
		case r.State == HostStarted:
			places--
		case r.State == HostDone:
			if left := time.Duration(strategy.Pause) - sc.now.Sub(r.since); left > 0 {
				places--
				wake = sooner(wake, left)
			}
		}
	}
	if len(renew) > 0 {
		return sc.change("grant again", renew), 0
	}
	if len(back) > 0 {
		return sc.change("take back", back), 0
	}
	granted := map[string]HostRecord{}
	for _, id := range sc.next(places) {
		now := sc.records[id].HostRecord
		now.State, now.Gate, now.Round, now.Error, now.Canary = HostGranted, gateV, sc.gate.Round, "", sc.gate.Wave == WaveCanary
		granted[id] = now
	}
	acts := sc.change("grant", granted)
	for i := range acts {
		acts[i].checkReady = true
	}
	return acts, wake
}

// takeBack returns the new record of a host that did not use its grant. The first
// time the host waits again; the second time it is skipped.
func (sc *scene) takeBack(id string, now HostRecord) HostRecord {
	now.State, now.Gate, now.Canary = HostWait, 0, false
	if sc.withdrawn[id] > 0 {
		now.State = HostSkipped
		now.Error = fmt.Sprintf("did not start within %s of its grant, twice", time.Duration(sc.proposal.Strategy.Grace))
	}
	return now
}

// next returns the hosts to start next, at most places of them.
func (sc *scene) next(places int) []string {
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

// canaries returns the hosts that may go first, in order, and how many more are
// needed.
func (sc *scene) canaries(ids []string) ([]string, int) {
	strategy := sc.proposal.Strategy
	if len(strategy.Order) > 0 {
		ids = slices.DeleteFunc(ids, func(id string) bool { return !contains(strategy.Order, id) })
		return ids, len(ids)
	}
	need := strategy.Canary
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

// advance opens the rollout to all hosts after the bake, and closes it when all are
// done.
func (sc *scene) advance() ([]act, time.Duration) {
	for _, r := range sc.records {
		if r.State == HostGranted || r.State == HostStarted && !r.Lost {
			return nil, 0
		}
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
			return nil, 0 // lost, and back: it goes on, or fails
		}
		if r.State == HostStarted {
			now := r.HostRecord
			now.State, now.Lost = HostFailed, false
			gone[id] = now
		}
	}
	if len(gone) > 0 {
		return sc.change("fail the absent", gone), 0
	}
	a := sc.close(ResultDone, "")
	a.ready = &config.Ready{
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

// afterBake lets all hosts start once the canaries are done and the bake has passed
// without a failure.
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
	if left > 0 {
		return nil, left
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

// bakeLeft returns the rest of the bake that the rollout waits for, or 0 when it
// waits for something else.
func (sc *scene) bakeLeft() time.Duration {
	if sc.gate.State != GateOpen || sc.gate.Wave != WaveCanary {
		return 0
	}
	for _, r := range sc.records {
		if r.active() {
			return 0
		}
	}
	if left, done := sc.bake(); done > 0 {
		return max(left, 0)
	}
	return 0
}

// progress returns the progress that report writes.
func (sc *scene) progress() Progress {
	p := Progress{Failures: map[string]string{}}
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
