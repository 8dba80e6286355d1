package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/view"
)

// snapshot is what the loop publishes for status, metrics and hooks.
type snapshot struct {
	view     view.View
	declared []view.Source
	live     map[view.Source]time.Time
	complete bool
	cached   bool
	busy     map[view.Source]bool // sources whose bundles are not yet applied
	bundles  map[string]bundleReport
	order    []string
	sources  map[string][]view.Source // of each bundle
	at       time.Time
	next     chan struct{} // closed at the next publication
}

// publish makes the state readable from outside.
func (l *loop) publish() {
	l.dirty = false
	s := &snapshot{
		view: l.v, declared: l.declared, live: maps.Clone(l.live), complete: l.complete, cached: l.cached,
		busy: map[view.Source]bool{}, bundles: map[string]bundleReport{}, sources: map[string][]view.Source{},
		at: time.Now(), next: make(chan struct{}),
	}
	for name, b := range l.bundles {
		s.bundles[name], s.sources[name] = b.report, b.sources
		s.order = append(s.order, name)
		if b.err == nil && (b.inFlight || b.settle.pending()) {
			for _, src := range b.sources {
				s.busy[src] = true
			}
		}
	}
	slices.Sort(s.order)
	if old := l.snapshot.Swap(s); old != nil {
		close(old.next)
	}
	l.changed()
}
