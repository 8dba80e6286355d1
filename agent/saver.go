package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/view"
)

// saveEvery is how long applies may go on before their view is kept; saving
// costs as much as the whole view is large. A slow disk makes it longer, up to
// saveAtMost.
const (
	saveEvery  = 2 * time.Second
	saveAtMost = 30 * time.Second
)

// lastGoodSaver keeps the last known good view on disk, and the service
// manager's status line up to date. Its own goroutine writes.
type lastGoodSaver struct {
	a    *Agent
	wake chan struct{} // size 1: something was published

	mu    sync.Mutex // mu guards saved.
	saved view.View

	ready atomic.Bool // the status line is to be shown
	line  string      // as it is shown; only the goroutine of run touches it
}

func newLastGoodSaver(a *Agent) *lastGoodSaver {
	return &lastGoodSaver{a: a, wake: make(chan struct{}, 1)}
}

// run saves after changes, not more often than saveEvery. Saving takes a twentieth of
// the time at most, unless one save takes more than a twentieth of saveAtMost. The first
// view is saved at once, and each later one at a random moment: a version changes the
// views of all agents of a host together, and their files are in place before they save.
func (s *lastGoodSaver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.tell()
		if s.kept() && !pace.Sleep(ctx, rand.N(saveEvery)) { //nolint:gosec // chance, no secret.
			return
		}
		began := time.Now()
		s.flush()
		if !pace.Sleep(ctx, min(max(saveEvery, 20*time.Since(began)), saveAtMost)) {
			return
		}
	}
}

// kept reports whether a view was saved.
func (s *lastGoodSaver) kept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.saved.Sources()) > 0
}

// tell shows a new status line.
func (s *lastGoodSaver) tell() {
	if !s.ready.Load() {
		return
	}
	if line := s.a.Summary(); line != s.line {
		s.line = line
		_ = s.a.notify.Status(line)
	}
}

// flush saves the view when it is a whole one that every bundle was rendered
// from, and differs from the one that was saved.
func (s *lastGoodSaver) flush() {
	snap := s.a.loop.snapshot.Load()
	if s.a.first.StateDir == "" || !snap.complete {
		return
	}
	for _, b := range snap.bundles {
		if b.State != "ok" {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sameSources(s.saved, snap.view) {
		return
	}
	err := lastgood.Save(s.a.first.StateDir, lastgood.Of(snap.view, nil))
	s.a.conds.Set("last-good-not-saved", "", err)
	if err == nil {
		s.saved = snap.view
		s.a.conds.Close("last-good-damaged", "")
	}
}

// sameSources reports whether two views hold the same states, but for who
// leads.
func sameSources(a, b view.View) bool {
	as, bs := a.Sources(), b.Sources()
	if len(as) != len(bs) {
		return false
	}
	for _, s := range bs {
		if s.Kind != view.KindElection && a.Get(s) != b.Get(s) {
			return false
		}
	}
	return true
}

// loadLastGood gives the loop the last known good view, for a start without
// ZooKeeper.
func (a *Agent) loadLastGood() {
	g, err := lastgood.Load(a.first.StateDir)
	a.conds.Set("last-good-damaged", "", err)
	a.loop.lastGood = g
}
