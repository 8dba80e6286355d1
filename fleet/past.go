package fleet

import (
	"slices"
	"time"
)

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
