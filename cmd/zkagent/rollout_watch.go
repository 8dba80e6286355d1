package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// followRollout shows a rollout until it ends. On a terminal each phase has a
// bar; elsewhere each event is a line, and an object with ndjson. The error is
// the rollout's own.
func (g *globals) followRollout(ctx context.Context, s *session.Session, t target, name string) error {
	f := newRolloutFollower(g, t, term.IsTerminal(g.Err))
	var last *fleet.State
	err := fleet.Watch(ctx, s, t.path, name, func(state *fleet.State) bool {
		last = state
		f.see(state)
		return !overPhase(state.Phase())
	})
	f.bar.end()
	switch {
	case err != nil && ctx.Err() != nil:
		g.Say("%s goes on without this command: \"zkagent rollout watch %s\" attaches again", name, t.name)
		return err
	case err != nil:
		return err
	case last.Err() == nil:
		if g.IsJSON() {
			return g.Line(map[string]any{"time": time.Now().UTC(), "event": "end", "state": last.Phase(), "version": last.Proposal.Version, "hosts": countsOf(last).Done, "failed": last.Gate.Failed, "skipped": last.Gate.Skipped})
		}
		counts := countsOf(last)
		g.Printf("%s: v%d is in use on %s\n", t.name, last.Proposal.Version, term.Count(counts.Done, "host"))
		if counts.Failed > 0 {
			g.Warnf("%s kept the version before: %s", term.Count(counts.Failed, "host"), strings.Join(last.Gate.Failed, ", "))
		}
		if counts.Skipped > 0 {
			g.Warnf("%s in maintenance passed by: %s", term.Count(counts.Skipped, "host"), strings.Join(last.Gate.Skipped, ", "))
		}
		return nil
	}
	hints := []string{"\"zkagent rollout status " + t.name + "\" shows each host"}
	if last.Phase() == fleet.PhaseHalted || last.Phase() == fleet.PhaseRefused {
		hints = append(hints, haltedHints(t, last)...)
	}
	return fail(exitFailed, last.Err(), hints...)
}

// haltedHints are what can be done about a rollout that has halted, or was
// refused in the place of one that had.
func haltedHints(t target, state *fleet.State) []string {
	if state != nil && state.Phase() == fleet.PhaseRefused {
		return []string{"hosts use different versions: \"zkagent rollout rollback " + t.name + "\" goes back, \"config publish --rollout --replace\" brings a better one"}
	}
	return []string{"\"zkagent rollout retry " + t.name + "\" tries again, \"zkagent rollout rollback " + t.name + "\" goes back"}
}

// rolloutFollower remembers what it has told.
type rolloutFollower struct {
	g        *globals
	t        target
	terminal bool // bars are drawn, and what goes well is not told
	phase    string
	votes    map[string]bool
	hosts    map[string]string
	decided  bool
	bar      bar
	frame    string // the last bar that was shown
}

func newRolloutFollower(g *globals, t target, terminal bool) *rolloutFollower {
	return &rolloutFollower{
		g: g, t: t, terminal: terminal && !g.IsJSON() && !g.Quiet, votes: map[string]bool{}, hosts: map[string]string{}, bar: bar{w: g.Err},
	}
}

// see tells what is new in the state, in the order in which it came about.
func (f *rolloutFollower) see(state *fleet.State) {
	phase := state.Phase()
	if f.phase == "" {
		f.newPhase(phase, "")
	}
	f.seeVotes(state)
	if !overPhase(phase) { // what ends a rollout comes after what led to it
		f.newPhase(phase, f.lastFrame(state))
	}
	f.seeHosts(state)
	f.newPhase(phase, f.lastFrame(state))
	f.draw(rolloutFrame(state))
}

// newPhase tells that another phase has begun; last is how the bar of the one
// before ends.
func (f *rolloutFollower) newPhase(phase, last string) {
	if phase == f.phase {
		return
	}
	f.draw(last)
	f.bar.end()
	f.phase = phase
	f.tell("phase", "", phase, "")
}

// lastFrame is how the bar of the phase that is shown ends.
func (f *rolloutFollower) lastFrame(state *fleet.State) string {
	switch {
	case f.phase == fleet.PhaseVoting:
		return votesFrame(state)
	case overPhase(state.Phase()):
		return rolloutFrame(state)
	}
	return ""
}

// draw shows a bar, unless it was shown last.
func (f *rolloutFollower) draw(frame string) {
	if f.terminal && frame != f.frame {
		f.frame = frame
		f.bar.draw(frame)
	}
}

// overPhase reports whether a rollout in the phase goes on no further by itself.
func overPhase(phase string) bool {
	switch phase {
	case fleet.PhaseHalted, fleet.PhaseRefused, fleet.PhaseDone, fleet.PhasePlanned, fleet.PhaseAborted:
		return true
	}
	return false
}

// seeVotes tells the votes and the decision.
func (f *rolloutFollower) seeVotes(state *fleet.State) {
	for _, id := range rolloutHosts(state) {
		if r := state.Hosts[id]; r.Vote() != "" && !f.votes[id] {
			f.votes[id] = true
			if r.Vote() != fleet.HostCommit || !f.terminal {
				f.tell("vote", id, r.Vote(), map[bool]string{true: r.Error}[r.Turn() == "" || r.State == fleet.HostSkipped])
			}
		}
	}
	refused := state.Gate.State == fleet.GateRefused || !state.Open() && !decided(state) && state.Gate.Result != fleet.ResultPlanned
	if (decided(state) || refused) && !f.decided {
		f.decided = true
		f.tell("decision", "", map[bool]string{true: fleet.HostCommit, false: fleet.HostAbort}[!refused], map[bool]string{true: state.Reason()}[refused])
	}
}

// seeHosts tells what the hosts do.
func (f *rolloutFollower) seeHosts(state *fleet.State) {
	for _, id := range rolloutHosts(state) {
		r := state.Hosts[id]
		if turn := r.Turn(); turn != "" && turn != fleet.HostGranted && f.hosts[id] != turn {
			f.hosts[id] = turn
			if r.Error != "" || !f.terminal {
				f.tell("host", id, turn, r.Error)
			}
		}
	}
}

// tell writes one event.
func (f *rolloutFollower) tell(kind, host, what, reason string) {
	if f.g.IsJSON() {
		_ = f.g.Line(map[string]string{
			"time": time.Now().UTC().Format(time.RFC3339Nano), "event": kind, "host": host, "state": what, "reason": reason,
		})
		return
	}
	if f.bar.clear() {
		f.frame = "" // it is to be drawn again
	}
	line := f.t.name + ": " + kind + " " + what
	if host != "" {
		line = fmt.Sprintf("%s: %s %s: %s", f.t.name, kind, host, what)
	}
	if reason != "" {
		line += ": " + term.Printable(reason)
	}
	f.g.Say("%s", line)
}
