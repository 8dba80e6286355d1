package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Act is one thing that somebody did to a rollout.
type Act struct {
	At  time.Time
	Who string // an operator or a host; empty: not known
	// What is a sentence without its subject, such as "paused it".
	What string
	Why  string
}

// Acts returns the acts on the rollout with their authors, oldest first, as far as its gate keeps them.
func (s *State) Acts() []Act {
	acts := []Act{{At: s.Created, Who: s.Proposal.Who, What: fmt.Sprintf("proposed version %d", s.Proposal.Version), Why: s.Proposal.Why}}
	before := GateState{State: GateVoting}
	for _, g := range s.Gate.Past {
		acts = append(acts, Act{g.At, whoOf(g), actOf(before, g), g.Reason})
		before = g
	}
	now := s.Gate.caused(s.GateAt.Time)
	if now.By == "" && now.Host == "" && s.Open() {
		return acts // the vote, as proposed
	}
	last := Act{now.At, whoOf(now), actOf(before, now), now.Reason}
	if !s.Open() {
		last.Who, last.What = now.By, "ended it: "+s.Phase()
		if now.Reason == before.Reason {
			last.Why = "" // that of the state before
		}
	}
	return append(acts, last)
}

// DecidedAt returns when the version was accepted or refused, by ZooKeeper's clock: the
// gate was written then, and perhaps again later. It is the time of the last write
// while there is no decision.
func (s *State) DecidedAt() time.Time {
	for _, g := range s.Gate.Past {
		if (g.State == GateOpen || g.State == GateRefused) && !g.At.IsZero() {
			return g.At
		}
	}
	return s.GateAt.Time
}

// whoOf returns the host that refused or failed, or the operator or coordinator.
func whoOf(g GateState) string { return cmp.Or(g.Host, g.By) }

// actOf returns what led from one state of the gate to the next one.
func actOf(before, now GateState) string {
	switch {
	case now.State == GateRefused:
		return "refused it"
	case now.State == GateHalted && now.Host == "":
		return "halted it"
	case now.State == GateHalted:
		return "failed, which halted it"
	case now.Paused:
		return "paused it"
	case before.Paused && now.IgnoreGate:
		return "resumed it past its health gate"
	case before.Paused:
		return "resumed it"
	case before.State == GateHalted:
		return fmt.Sprintf("lifted the halt, for try %d", now.Round+1)
	case before.Wave == WaveCanary && now.Wave == WaveAll:
		return "let all hosts start after the canaries"
	case now.Wave == WaveCanary:
		return "let the canaries start"
	case now.State == GateOpen:
		return "let all hosts start"
	}
	return "changed it"
}

// GateState is a state of a rollout's gate that somebody caused. Its fields have the
// names that they have in the gate.
type GateState struct {
	State      string    `json:"state"`
	Paused     bool      `json:"paused,omitempty"`
	Wave       string    `json:"wave,omitempty"`
	Round      int       `json:"round,omitempty"`
	IgnoreGate bool      `json:"ignore_gate,omitempty"`
	Host       string    `json:"host,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	At         time.Time `json:"at,omitzero"` // when it was written, by ZooKeeper's clock
}

// Bounds of the past of a gate, and of freezes: their number and the bytes of a reason.
const (
	maxPast       = 20
	maxPastReason = 200
)

// addPast adds a state to the past of a gate, unless nobody caused it: the first.
func addPast(past []GateState, was GateState) []GateState {
	if was.By == "" && was.Host == "" {
		return past
	}
	was.Reason, was.At = clipPast(was.Reason), was.At.UTC()
	past = append(slices.Clone(past), was)
	return past[max(0, len(past)-maxPast):]
}

func clipPast(reason string) string { return Clip(reason, maxPastReason) }
