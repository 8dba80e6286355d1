package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
)

const barWidth = 24

// bar draws one line of a terminal again and again. It is not safe for
// concurrent use.
type bar struct {
	w     io.Writer
	shown string // what stands in the line; empty: nothing
}

// draw shows a frame in place of the one before.
func (b *bar) draw(frame string) {
	if frame == b.shown || frame == "" {
		return
	}
	b.erase()
	b.shown = frame
	// A line that wraps could not be overwritten.
	if runes, most := []rune(frame), columns(b.w)-1; most > 0 && len(runes) > most {
		frame = string(runes[:most])
	}
	_, _ = io.WriteString(b.w, frame)
}

// columns is the width of a terminal, 0 when it is unknown.
func columns(w io.Writer) int {
	f, ok := term.File(w)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// erase empties the line. It bypasses the terminal guard, because the control
// characters are our own.
func (b *bar) erase() { _, _ = io.WriteString(term.Unguarded(b.w), "\r\x1b[K") }

// clear makes room for a line of text, and reports whether a bar stood there.
func (b *bar) clear() bool {
	if b.shown == "" {
		return false
	}
	b.erase()
	b.shown = ""
	return true
}

// end leaves the last frame on its line.
func (b *bar) end() {
	if b.shown != "" {
		_, _ = io.WriteString(b.w, "\n")
		b.shown = ""
	}
}

// rolloutFrame is the bar of the phase that a rollout is in; empty when there
// is nothing to count.
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
		total := recorded(counts) - counts.Skipped
		if name == "canary" {
			total = min(strategy.Canary, total)
		}
		return frame(name, counts.Done, total, words)
	}
}

// countsOf counts the hosts, by their records or, in a large fleet, by the
// coordinator's counts.
func countsOf(state *fleet.State) fleet.Counts {
	switch {
	case len(state.Called) > 0:
		return state.Counts()
	case state.Gate.Counts != nil:
		return *state.Gate.Counts
	}
	return state.Progress.Counts
}

// recorded returns the number of hosts that were called or have a record.
func recorded(c fleet.Counts) int { return max(c.Called, voted(c)+c.Wait) }

// voted returns the number of hosts that have voted or need not vote.
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
