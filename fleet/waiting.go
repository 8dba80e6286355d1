package fleet

import (
	"fmt"
	"slices"
	"time"
)

// What a rollout waits for.
const (
	WaitPaused  = "paused"
	WaitVotes   = "votes"
	WaitBake    = "bake"
	WaitLost    = "lost"
	WaitPermits = "permits"
)

// Waiting is the event that a rollout waits for before another host starts.
type Waiting struct {
	For  string
	Text string        // for people
	Left time.Duration // of a bake
}

// Waiting says why no further host starts now. It returns the zero Waiting when the
// next host can start or the rollout is over. Every view shows this result.
func (s *State) Waiting(now time.Time) Waiting {
	switch phase := s.Phase(); {
	case phase == PhasePaused:
		text := "paused"
		if s.Gate.By != "" {
			text += " by " + s.Gate.By
		}
		if s.Gate.Reason != "" {
			text += ": " + s.Gate.Reason
		}
		return Waiting{For: WaitPaused, Text: text}
	case phase == PhaseVoting && s.Gate.State == GateVoting:
		if missing := s.in(""); len(missing) > 0 {
			return Waiting{For: WaitVotes, Text: "waiting for the votes of " + someNames(missing)}
		}
		return Waiting{For: WaitVotes, Text: "waiting for votes"}
	case phase != PhaseRolling:
		return Waiting{}
	}
	if s.Gate.Wave == WaveCanary && (!s.Progress.Baked.IsZero() || s.Progress.BakeCheck != "") {
		left := max(0, min(s.Progress.Baked.Sub(now), time.Duration(s.Proposal.Strategy.Bake)).Round(time.Second))
		if text := bakeWords(left, s.Progress.BakeCheck); text != "" {
			return Waiting{For: WaitBake, Text: text, Left: left}
		}
	}
	active, ready := slices.Concat(s.in(HostGranted), s.in(HostStarted)), slices.Concat(s.in(HostCommit), s.in(HostWait))
	slices.Sort(active)
	switch lost := slices.DeleteFunc(slices.Clone(active), func(id string) bool { return !s.Hosts[id].Lost }); {
	case len(active) > 0 && len(lost) == len(active):
		return Waiting{For: WaitLost, Text: "waiting for " + someNames(lost) + ": its agent is gone"}
	case len(active) == 0 && s.Progress.BakeCheck != "":
		return Waiting{For: WaitBake, Text: "waiting for the bake check"}
	case len(active) >= s.Proposal.Strategy.Parallel && len(ready) > 0:
		return Waiting{For: WaitPermits, Text: "waiting for permits: " + someNames(active) + " at work"}
	}
	return Waiting{}
}

// in returns the hosts in a state, sorted; "": called hosts without a record.
func (s *State) in(state string) []string {
	var ids []string
	if state == "" {
		ids = slices.DeleteFunc(slices.Clone(s.Called), func(id string) bool { return s.Hosts[id].State != "" })
	}
	for id, r := range s.Hosts {
		if r.State == state && state != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// inWords is a duration such as "1 min 30 s".
func inWords(d time.Duration) string {
	minutes, seconds := int(d/time.Minute), int(d%time.Minute/time.Second)
	switch {
	case minutes == 0:
		return fmt.Sprintf("%d s", seconds)
	case seconds == 0:
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d min %d s", minutes, seconds)
}
