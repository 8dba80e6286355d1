package agent

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/view"
)

// snapshot is what the loop publishes for status, metrics and hooks. Its maps and
// lists may be those of other snapshots, too, and are not changed.
type snapshot struct {
	view     view.View
	declared []view.Source
	live     map[view.Source]time.Time
	complete bool
	cached   bool
	busy     map[view.Source]bool // sources whose bundles are not yet applied
	refused  map[view.Source]bool // sources with a bundle whose latest apply failed, or kept the file before
	bundles  []*shownBundle       // by name; what their applies remember is not for readers
	at       time.Time
	next     chan struct{} // closed at the next publication
}

func (s *snapshot) bundle(name string) *shownBundle {
	i, found := slices.BinarySearchFunc(s.bundles, name, func(b *shownBundle, name string) int { return strings.Compare(b.Config.Name, name) })
	if !found {
		return nil
	}
	return s.bundles[i]
}

// report returns that of a bundle; the zero value before there is one.
func (s *snapshot) report(name string) bundleReport {
	if b := s.bundle(name); b != nil {
		return b.report
	}
	return bundleReport{}
}

func (s *snapshot) using(source view.Source) []*shownBundle {
	return slices.DeleteFunc(slices.Clone(s.bundles), func(b *shownBundle) bool { return !slices.Contains(b.Sources, source) })
}

func (l *loop) publish() {
	l.dirty = false
	s := &snapshot{
		view: l.v, declared: l.declared, live: maps.Clone(l.live), complete: l.complete, cached: l.cached,
		busy: map[view.Source]bool{}, refused: map[view.Source]bool{}, bundles: l.shown,
		at: time.Now(), next: make(chan struct{}),
	}
	for _, b := range l.sorted {
		if b.report.State == "failed" || b.report.State == "kept" {
			for _, src := range b.Sources {
				s.refused[src] = true
			}
		}
		if b.Err == nil && (b.inFlight && !b.drifting || b.settle.Pending()) {
			for _, src := range b.Sources {
				s.busy[src] = true
			}
		}
	}
	if old := l.snapshot.Swap(s); old != nil {
		close(old.next)
	}
	// What takes longer than a moment is done by others.
	l.a.saved.ready.Store(l.isReady)
	pace.Notify(l.a.saved.wake)
	pace.Notify(l.a.wake.record)
}
