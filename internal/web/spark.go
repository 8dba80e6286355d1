package web

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/term"
)

// How much the sparklines show.
const (
	sampleEvery = time.Minute
	samplesKept = 120
	weeksShown  = 12
)

// spark is a small line of numbers, the oldest first.
type spark struct {
	What   string // such as "members"
	Over   string // such as "2 hours"
	Values []int
}

// Now is the latest number.
func (s spark) Now() int {
	if len(s.Values) == 0 {
		return 0
	}
	return s.Values[len(s.Values)-1]
}

// Points are the corners of the line in a box of 120 by 24.
func (s spark) Points() string {
	var b strings.Builder
	low, high := 0, 1
	for _, v := range s.Values {
		high = max(high, v)
	}
	for i, v := range s.Values {
		x := 120.0
		if len(s.Values) > 1 {
			x = 120 * float64(i) / float64(len(s.Values)-1)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, 23-22*float64(v-low)/float64(high-low))
	}
	return b.String()
}

// Words describe the line to those who do not see it.
func (s spark) Words() string {
	low, high := s.Now(), s.Now()
	for _, v := range s.Values {
		low, high = min(low, v), max(high, v)
	}
	return fmt.Sprintf("%s over %s: from %d to %d, now %d", s.What, s.Over, low, high, s.Now())
}

// samples are the numbers of the last hours. It is safe for concurrent use.
type samples struct {
	mu      sync.Mutex // mu guards everything below.
	seq     int64      // of the last event that was counted
	members []int
	renders []int
}

// take adds a sample.
func (h *samples) take(s *Server) {
	members := s.memberCount()
	h.mu.Lock()
	defer h.mu.Unlock()
	renders := 0
	list, _ := s.Events.Since(h.seq)
	for _, e := range list {
		h.seq = e.Seq
		if e.Kind == "applied" {
			renders++
		}
	}
	h.members, h.renders = keep(h.members, members), keep(h.renders, renders)
}

// memberCount is how many members the groups of this agent have.
func (s *Server) memberCount() int {
	members := 0
	for _, list := range s.Source.Members() {
		members += len(list)
	}
	return members
}

// keep appends to the list and drops what is too old.
func keep(list []int, n int) []int {
	list = append(list, n)
	return list[max(0, len(list)-samplesKept):]
}

// sparks are the lines of the fleet's page.
func (s *Server) sparks(trees []treeView, now time.Time) []spark {
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	over := term.Count(len(s.samples.members), "minute")
	published := make([]int, weeksShown)
	for _, t := range trees {
		for _, v := range t.Versions {
			if week := int(now.Sub(v.Time) / (7 * 24 * time.Hour)); week >= 0 && week < weeksShown {
				published[weeksShown-1-week]++
			}
		}
	}
	return []spark{
		{"Members of the groups here", over, append([]int(nil), keep(s.samples.members, s.memberCount())...)},
		{"Renders a minute here", over, append([]int(nil), s.samples.renders...)},
		{"Versions a week", fmt.Sprintf("%d weeks", weeksShown), published},
	}
}
