package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The vote. The coordinator calls every subscriber to judge the version, as fast as
// callRate allows, and opens the gate when all have answered or the time is up. One
// refusal ends the rollout before any host changes. A host that does not answer is a
// refusal unless the strategy skips absent hosts.

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
			if slices.Contains(strategy.Order, id) {
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
	if n := sc.canary(); n > 0 && n < len(sc.live) {
		g.Wave = WaveCanary
	}
	return []act{{what: "commit", gate: &g, unfrozen: true, checkReady: true}}, 0
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
