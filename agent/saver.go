package agent

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/renderlog"
	"github.com/zkagent/zkagent/view"
)

// saveEvery is how long applies may continue before their view is kept. A slow disk makes
// it longer, up to saveAtMost.
const (
	saveEvery  = 2 * time.Second
	saveAtMost = 30 * time.Second
)

// lastGoodSaver keeps the last known good view on disk, and the service
// manager's status line up to date. Its own goroutine writes.
type lastGoodSaver struct {
	a    *Agent
	wake chan struct{} // size 1: something was published

	kept *lastgood.Keeper

	ready atomic.Bool // the status line is to be shown
	line  string      // as it is shown; only the goroutine of run touches it
}

// run saves after changes, not more often than saveEvery. Saving takes a twentieth of
// the time at most, unless one save takes more than a twentieth of saveAtMost. The first
// view is saved at once, and each later one late: a version changes the views of all
// agents of a host together, and their files come before what they save. The last one is
// saved when ctx ends.
func (s *lastGoodSaver) run(ctx context.Context) {
	defer s.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.announce()
		first := len(s.kept.Kept().Sources()) == 0
		if first && !s.unsaved(s.a.loop.snapshot.Load().good) {
			continue
		}
		woken := time.Now()
		if !first && !pace.Sleep(ctx, pace.Late(saveEvery*3/4)) {
			return
		}
		select {
		case <-s.wake: // what was published meanwhile is saved now
			s.announce()
		default:
		}
		began := time.Now()
		s.flush()
		rest := max(saveEvery-time.Since(woken), 20*time.Since(began))
		if !pace.Sleep(ctx, min(rest, saveAtMost)) {
			return
		}
	}
}

// announce shows a new status line.
func (s *lastGoodSaver) announce() {
	if !s.ready.Load() {
		return
	}
	if line := s.a.Summary(); line != s.line {
		s.line = line
		_ = s.a.notify.Status(line)
	}
}

// unsaved reports whether a view differs from the one that was saved, but for who leads.
func (s *lastGoodSaver) unsaved(v view.View) bool {
	if s.a.first.StateDir == "" {
		return false
	}
	kept := s.kept.Kept()
	return !slices.EqualFunc(kept.Sources(), v.Sources(), func(x, y view.Source) bool {
		return x == y && (y.Kind == view.KindElection || kept.Get(y) == v.Get(y))
	})
}

// end saves the latest good view. If that is in use, it also saves that it was so until now.
func (s *lastGoodSaver) end() {
	s.flush()
	if kept := s.kept.Kept(); len(kept.Sources()) > 0 && !s.unsaved(s.a.loop.snapshot.Load().view) {
		_ = s.kept.Save(kept)
	}
}

// flush saves the latest good view when it differs from the one that was saved.
func (s *lastGoodSaver) flush() {
	if !s.unsaved(s.a.loop.snapshot.Load().good) {
		return
	}
	err := s.kept.Save(s.a.loop.snapshot.Load().good)
	s.a.conds.Set(condition.LastGoodNotSaved, "", err)
	if err == nil {
		s.a.conds.Close(condition.LastGoodDamaged, "")
	}
}

// renderOf returns what keeps the record of an apply, which is to be called when
// the result was passed on. What it keeps is taken now, while the apply owns it.
func (l *loop) renderOf(job *apply.Job, r *apply.Result) func() {
	if len(r.Wrote) == 0 && r.Err == nil || r.Mode == apply.ModeDrift {
		return func() {}
	}
	b := job.Bundle
	rec := renderlog.Record{
		Time: time.Now().UTC().Truncate(time.Millisecond), Took: r.Took, Stage: r.Stage,
		Version: command.ConfigVersion(r.View, b.Sources),
	}
	if r.Err != nil {
		rec.Error = r.Err.Error()
	}
	if last := l.a.engine.LastReload(b.Config.Name); last != nil {
		rec.Reload = fmt.Sprintf("exit %d after %s", last.Code, time.Duration(last.Took).Round(time.Millisecond))
	}
	for _, f := range r.Wrote {
		rec.Files = append(rec.Files, renderlog.File{Path: f.Destination, Gone: f.Gone, Size: len(f.Data), Data: f.Data})
	}
	return func() {
		rec.Changes = renderlog.Changes(&job.Old, &r.View, b.Sources)
		if err := l.a.renders.Add(b.Config.Name, rec, l.a.cfg.Load().HistorySize); err != nil {
			l.a.log.Warn("cannot save the render in the history", "template", b.Config.Name, "err", err)
		}
	}
}
