package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/fleet"
)

// barWidth is the width of a bar in cells.
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
	_, _ = io.WriteString(b.w, "\r\x1b[K"+cut(frame, columns(b.w)-1))
	b.shown = frame
}

// cut shortens a line to so many columns, if there are any: one that wraps could
// not be drawn over.
func cut(line string, columns int) string {
	if runes := []rune(line); columns > 0 && len(runes) > columns {
		return string(runes[:columns])
	}
	return line
}

// columns is the width of a terminal, 0 when it is unknown.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// clear makes room for a line of text, and reports whether a bar stood there.
func (b *bar) clear() bool {
	if b.shown == "" {
		return false
	}
	_, _ = io.WriteString(b.w, "\r\x1b[K")
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
func rolloutFrame(state *fleet.State) string {
	strategy := state.Proposal.Strategy
	switch phase := state.Phase(); phase {
	case fleet.PhaseVoting:
		return votesFrame(state)
	case fleet.PhaseAborted:
		return ""
	default:
		name, words := "roll", fmt.Sprintf("%d at a time", strategy.Parallel)
		if state.Activity.Budget >= 0 && strategy.Canary > 0 {
			name, words = "canary", fmt.Sprintf("then %d at a time", strategy.Parallel)
		}
		if phase != fleet.PhaseRolling && phase != fleet.PhaseDone {
			words = phase
		}
		counts := hostCounts(state)
		if n := counts[fleet.HostFailed]; n > 0 {
			words += fmt.Sprintf(", %d failed", n)
		}
		if n := counts[fleet.HostSkipped]; n > 0 {
			words += fmt.Sprintf(", %d in maintenance", n)
		}
		total := len(rolloutHosts(state)) - counts[fleet.HostSkipped]
		if name == "canary" {
			total = min(strategy.Canary, total)
		}
		return frame(name, counts[fleet.HostDone], total, words)
	}
}

// votesFrame is the bar of the votes.
func votesFrame(state *fleet.State) string {
	return frame("vote", len(state.Votes), len(state.Proposal.Participants), votesWords(state))
}

// votesWords says who has not said yes.
func votesWords(state *fleet.State) string {
	refused := 0
	for _, v := range state.Votes {
		if !v.Commit && !v.Skip {
			refused++
		}
	}
	if refused == 0 {
		return ""
	}
	return fmt.Sprintf("%d refused", refused)
}

// hostCounts counts the hosts by state.
func hostCounts(state *fleet.State) map[string]int {
	counts := map[string]int{}
	for _, h := range state.Hosts {
		counts[h.State]++
	}
	return counts
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
