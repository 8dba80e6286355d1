package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// followRollout shows a rollout until it ends. On a terminal each phase has a
// bar; elsewhere each event is a line, and an object with ndjson. The error is
// the rollout's own.
func followRollout(ctx context.Context, g *globals, s *session.Session, t target, name string) error {
	f := newRolloutFollower(g, t, term.IsTerminal(g.Err))
	last, err := f.follow(ctx, s, name)
	f.bar.end()
	switch {
	case err != nil && ctx.Err() != nil:
		g.Say("%s continues without this command: \"zkagent rollout watch %s\" attaches again", name, t.name)
		return err
	case err != nil:
		return err
	case last.Err() == nil:
		if g.IsJSON() {
			return g.Line(map[string]any{"time": last.GateAt.Time.UTC(), "event": "end", "state": last.Phase(), "version": last.Proposal.Version, "hosts": countsOf(last).Done, "failed": last.Gate.Failed, "skipped": last.Gate.Skipped})
		}
		counts := countsOf(last)
		g.Printf("%s: v%d is in use on %s\n", t.name, last.Proposal.Version, term.Count(counts.Done, "host"))
		if counts.Failed > 0 {
			g.Warnf("%s kept the version before: %s", term.Count(counts.Failed, "host"), strings.Join(last.Gate.Failed, ", "))
		}
		if counts.Skipped > 0 {
			g.Warnf("%s in maintenance, left out: %s", term.Count(counts.Skipped, "host"), strings.Join(last.Gate.Skipped, ", "))
		}
		return nil
	}
	hints := []string{"\"zkagent rollout status " + t.name + "\" shows each host"}
	if last.Phase() == fleet.PhaseHalted || last.Phase() == fleet.PhaseRefused {
		hints = append(hints, haltedHints(t, last)...)
	}
	return fail(exitFailed, last.Err(), hints...)
}

func haltedHints(t target, state *fleet.State) []string {
	if state != nil && state.Phase() == fleet.PhaseRefused {
		return []string{"hosts use different versions: \"zkagent rollout undo " + t.name + "\" goes back, \"zkagent config publish DIR " + t.name + " --rollout --replace\" brings a better one"}
	}
	return []string{"\"zkagent rollout retry " + t.name + "\" tries again, \"zkagent rollout undo " + t.name + "\" goes back"}
}

// follow shows what Watch sees until the rollout is over, and returns its last
// state. A bake counts down on a terminal.
func (f *rolloutFollower) follow(ctx context.Context, s *session.Session, name string) (*fleet.State, error) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex // mu guards f and last.
	var last *fleet.State
	var wg sync.WaitGroup
	wg.Go(func() {
		for pace.Sleep(ctx, time.Second) {
			mu.Lock()
			if last != nil {
				f.draw(rolloutFrame(last, time.Now()))
			}
			mu.Unlock()
		}
	})
	err := fleet.Watch(ctx, s, f.t.path, name, func(state *fleet.State) bool {
		mu.Lock()
		defer mu.Unlock()
		last = state
		f.see(state)
		return !fleet.Over(state.Phase())
	})
	cancel()
	wg.Wait()
	return last, err
}

type rolloutFollower struct {
	g        *globals
	t        target
	terminal bool // draw bars, and print no event that goes well
	phase    string
	votes    map[string]bool
	hosts    map[string]string
	waiting  string // what the rollout waits for
	decided  bool
	bar      bar
	frame    string // the last bar that was shown
}

func newRolloutFollower(g *globals, t target, terminal bool) *rolloutFollower {
	return &rolloutFollower{
		g: g, t: t, terminal: terminal && !g.IsJSON() && !g.Quiet, votes: map[string]bool{}, hosts: map[string]string{}, bar: bar{w: g.Err},
	}
}

type rolloutEvent struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"` // phase, vote, decision, host, waiting or end
	Host   string    `json:"host,omitempty"`
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Left   float64   `json:"left_seconds,omitempty"` // of a bake

	zxid  int64
	quiet bool // what goes well, which a terminal shows as a bar
}

// see prints what is new in the state: votes, the decision, then hosts and phases
// in the order of their writes. Of several hosts in one transaction, it prints
// first those that end.
func (f *rolloutFollower) see(state *fleet.State) {
	phase := state.Phase()
	if f.phase == "" && phase == fleet.PhaseVoting {
		f.newPhase(state, phase, state.Created, "")
	}
	f.notify(f.newVotes(state)...)
	f.seeDecision(state)
	last := f.lastFrame(state)
	over, first := fleet.Over(phase), len(f.hosts) == 0
	events := f.newHostStates(state, over)
	switch {
	case f.phase == fleet.PhaseVoting && len(events) > 0 && over && decided(state): // all turns are over since the last look
		f.newPhase(state, fleet.PhaseRolling, events[0].Time, last)
		last = f.lastFrame(state)
	case !over && (f.phase == fleet.PhaseVoting || first):
		f.newPhase(state, phase, state.GateAt.Time, last)
	}
	later := slices.IndexFunc(events, func(e rolloutEvent) bool { return e.zxid > state.GateAt.Zxid })
	if over || later < 0 { // what ends a rollout comes after what led to it
		later = len(events)
	}
	f.notify(events[:later]...)
	f.newPhase(state, phase, state.GateAt.Time, last)
	f.notify(events[later:]...)
	if wait := state.Waiting(time.Now()); wait.For != f.waiting {
		f.waiting = wait.For
		if !slices.Contains([]string{"", fleet.WaitPaused, fleet.WaitVotes}, wait.For) { // the phase says these
			f.notify(rolloutEvent{Time: time.Now(), Event: "waiting", State: wait.For, Reason: wait.Text, Left: wait.Left.Seconds(), quiet: wait.For != fleet.WaitLost})
		}
	}
	f.draw(rolloutFrame(state, time.Now()))
}

func (f *rolloutFollower) newPhase(state *fleet.State, phase string, at time.Time, last string) {
	if phase == f.phase {
		return
	}
	f.draw(last)
	f.bar.end()
	f.phase = phase
	e := rolloutEvent{Time: at, Event: "phase", State: phase}
	if phase == fleet.PhasePaused {
		e.Reason = strings.TrimPrefix(strings.TrimPrefix(state.Waiting(time.Now()).Text, "paused"), " ")
	}
	f.notify(e)
}

// lastFrame returns the final bar of the shown phase.
func (f *rolloutFollower) lastFrame(state *fleet.State) string {
	switch {
	case f.phase == fleet.PhaseVoting:
		return votesFrame(state)
	case fleet.Over(state.Phase()):
		return rolloutFrame(state, time.Now())
	}
	return ""
}

// draw shows a bar in place of the one before, unless it was shown last.
func (f *rolloutFollower) draw(frame string) {
	if !f.terminal || frame == f.frame {
		return
	}
	f.frame = frame
	if frame == f.bar.shown || frame == "" {
		return
	}
	f.bar.erase()
	f.bar.shown = frame
	// A line that wraps could not be overwritten.
	if runes, most := []rune(frame), term.Width(f.bar.w)-1; most > 0 && len(runes) > most {
		frame = string(runes[:most])
	}
	_, _ = io.WriteString(f.bar.w, frame)
}

func (f *rolloutFollower) newVotes(state *fleet.State) []rolloutEvent {
	var events []rolloutEvent
	for _, id := range state.All() {
		if r := state.Hosts[id]; r.Vote() != "" && !f.votes[id] {
			f.votes[id] = true
			e := eventOf(state, id, "vote", r.VoteText())
			if at := state.DecidedAt(); decided(state) && e.Time.After(at) {
				e.Time = at // the record has changed since: the host voted before the decision
			}
			if r.Turn() == "" || r.State == fleet.HostSkipped {
				e.Reason = r.Error
			}
			e.quiet = r.VoteText() == fleet.HostCommit
			events = append(events, e)
		}
	}
	return inOrder(events)
}

func (f *rolloutFollower) seeDecision(state *fleet.State) {
	refused := state.Gate.State == fleet.GateRefused || !state.Open() && !decided(state) && state.Gate.Result != fleet.ResultPlanned
	if f.decided || !decided(state) && !refused {
		return
	}
	f.decided = true
	e := rolloutEvent{Time: state.DecidedAt(), Event: "decision", State: fleet.HostCommit, quiet: f.phase == ""}
	if refused {
		e.State, e.Reason, e.quiet = fleet.HostAbort, state.Reason(), false
	}
	f.notify(e)
}

// newHostStates returns the turns of hosts that were not printed yet. Turns after
// state.Whole wait for the next look, unless all is set.
func (f *rolloutFollower) newHostStates(state *fleet.State, all bool) []rolloutEvent {
	var events []rolloutEvent
	for _, id := range state.All() {
		r := state.Hosts[id]
		turn := state.Turn(id)
		if turn == "" || turn == fleet.HostGranted || f.hosts[id] == turn || !all && state.At[id].Zxid > state.Whole {
			continue
		}
		f.hosts[id] = turn
		e := eventOf(state, id, "host", turn)
		e.Reason, e.quiet = r.Error, r.Error == ""
		events = append(events, e)
	}
	return inOrder(events)
}

func eventOf(state *fleet.State, id, kind, what string) rolloutEvent {
	at := state.At[id]
	return rolloutEvent{Time: at.Time, Event: kind, Host: id, State: what, zxid: at.Zxid}
}

// inOrder sorts events as they were written; at one zxid, ends before starts.
func inOrder(events []rolloutEvent) []rolloutEvent {
	slices.SortStableFunc(events, func(a, b rolloutEvent) int {
		starts := a.State == fleet.HostStarted
		switch {
		case a.zxid != b.zxid || starts == (b.State == fleet.HostStarted):
			return cmp.Compare(a.zxid, b.zxid)
		case starts:
			return 1
		}
		return -1
	})
	return events
}

// notify prints events, but those that a bar shows.
func (f *rolloutFollower) notify(events ...rolloutEvent) {
	for _, e := range events {
		e.Time = e.Time.UTC()
		if f.g.IsJSON() {
			_ = f.g.Line(e)
			continue
		}
		if e.quiet && f.terminal {
			continue
		}
		if f.bar.shown != "" { // make room, and draw it again
			f.bar.erase()
			f.bar.shown, f.frame = "", ""
		}
		line := f.t.name + ": " + e.Event + " " + e.State
		switch {
		case e.Event == "waiting":
			line, e.Reason = f.t.name+": "+term.Printable(e.Reason), ""
		case e.Host != "":
			line = fmt.Sprintf("%s: %s %s: %s", f.t.name, e.Event, e.Host, e.State)
		}
		if e.Reason != "" {
			line += ": " + term.Printable(e.Reason)
		}
		if !f.terminal {
			line = e.Time.Format(time.TimeOnly) + "  " + line
		}
		f.g.Say("%s", line)
	}
}

const barWidth = 24

// bar draws one line of a terminal again and again. It is not safe for
// concurrent use.
type bar struct {
	w     io.Writer
	shown string // what stands in the line; empty: nothing
}

// erase empties the line. It bypasses the terminal guard, because the control
// characters are our own.
func (b *bar) erase() { _, _ = io.WriteString(term.Unguarded(b.w), "\r\x1b[K") }

// end leaves the last frame on its line.
func (b *bar) end() {
	if b.shown != "" {
		_, _ = io.WriteString(b.w, "\n")
		b.shown = ""
	}
}

// rolloutFrame is the bar of the phase; empty when there is nothing to count.
func rolloutFrame(state *fleet.State, now time.Time) string {
	strategy, counts := state.Proposal.Strategy, countsOf(state)
	switch phase := state.Phase(); {
	case state.Gate.State == fleet.GateVoting, phase == fleet.PhaseVoting, phase == fleet.PhasePlanned:
		return votesFrame(state)
	case phase == fleet.PhaseAborted, phase == fleet.PhaseRefused, phase == fleet.PhaseReplaced, phase == fleet.PhaseRolledBack:
		return ""
	default:
		name, words := "roll", fmt.Sprintf("%d at a time", strategy.Parallel)
		if state.Gate.Wave == fleet.WaveCanary {
			name, words = "canary", fmt.Sprintf("then %d at a time", strategy.Parallel)
		}
		switch wait := state.Waiting(now); {
		case wait.For == fleet.WaitPaused, wait.For == fleet.WaitBake, wait.For == fleet.WaitLost:
			words = term.Printable(wait.Text)
		case phase != fleet.PhaseRolling && phase != fleet.PhaseDone:
			words = phase
		}
		if counts.Failed > 0 {
			words += fmt.Sprintf(", %d failed", counts.Failed)
		}
		if counts.Skipped > 0 {
			words += fmt.Sprintf(", %d in maintenance", counts.Skipped)
		}
		total := max(counts.Called, voted(counts)+counts.Wait) - counts.Skipped // that were called or have a record
		if name == "canary" {
			total = min(strategy.Canary, total)
		}
		return frame(name, counts.Done, total, words)
	}
}

// countsOf counts the hosts; in a large fleet the coordinator does it.
func countsOf(state *fleet.State) fleet.Counts {
	if len(state.Called) > 0 {
		return state.Counts()
	}
	return *cmp.Or(state.Gate.Counts, &state.Progress.Counts)
}

func voted(c fleet.Counts) int {
	return c.Commit + c.Abort + c.Skipped + c.Granted + c.Started + c.Done + c.Failed
}

func votesFrame(state *fleet.State) string {
	c := countsOf(state)
	words := ""
	if c.Abort > 0 {
		words = fmt.Sprintf("%d refused", c.Abort)
	}
	return frame("vote", voted(c), max(c.Called, state.Proposal.Hosts), words)
}

// frame draws a bar: its name, how much of it is full, numbers and words.
func frame(name string, now, total int, words string) string {
	if total <= 0 {
		return ""
	}
	now = min(now, total)
	full := barWidth * now / total
	line := fmt.Sprintf(" %-8s %s%s  %d/%d", name, strings.Repeat("█", full), strings.Repeat("░", barWidth-full), now, total)
	if words != "" {
		line += "  " + words
	}
	return line
}
