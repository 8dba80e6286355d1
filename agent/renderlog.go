package agent

import (
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/renderlog"
)

// renderOf returns what keeps the record of an apply, which is to be called when
// the result was passed on. What it keeps is taken now, while the apply owns it.
func (l *loop) renderOf(job *apply.Job, r *apply.Result) func() {
	if l.keep == nil || len(r.Wrote) == 0 && r.Err == nil || r.Mode == apply.ModeDrift {
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
	if last := l.engine.LastReload(b.Config.Name); last != nil {
		rec.Reload = fmt.Sprintf("exit %d after %s", last.Code, time.Duration(last.Took).Round(time.Millisecond))
	}
	for _, f := range r.Wrote {
		rec.Files = append(rec.Files, renderlog.File{Path: f.Destination, Gone: f.Gone, Size: len(f.Data), Data: f.Data})
	}
	return func() {
		rec.Changes = renderlog.Changes(&job.Old, &r.View, b.Sources)
		l.keep(b.Config.Name, rec)
	}
}

// renderKeeper returns what keeps records in the state directory.
func (a *Agent) renderKeeper(stateDir string) func(string, renderlog.Record) {
	store := renderlog.New(stateDir)
	return func(bundle string, r renderlog.Record) {
		if err := store.Add(bundle, r, a.cfg.Load().HistorySize); err != nil {
			a.log.Warn("cannot save the render in the history", "template", bundle, "err", err)
		}
	}
}
