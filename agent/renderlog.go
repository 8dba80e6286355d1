package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/renderlog"
	"github.com/zkagent/zkagent/view"
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
		Version: command.ConfigVersion(r.View, b.Sources), Changes: sourceChanges(&job.Old, &r.View, b.Sources),
	}
	if r.Err != nil {
		rec.Error = r.Err.Error()
	}
	if last := l.engine.LastReload(b.Config.Name); last != nil {
		rec.Reload = fmt.Sprintf("exit %d after %s", last.Code, last.Took.Round(time.Millisecond))
	}
	for _, f := range r.Wrote {
		rec.Files = append(rec.Files, renderlog.File{Path: f.Destination, Gone: f.Gone, Size: len(f.Data), Data: f.Data})
	}
	return func() { l.keep(b.Config.Name, rec) }
}

// renderKeeper returns what keeps records in the state directory.
func (a *Agent) renderKeeper(stateDir string) func(string, renderlog.Record) {
	store := renderlog.New(stateDir)
	return func(bundle string, r renderlog.Record) {
		if err := store.Add(bundle, r, a.cfg.Load().HistorySize); err != nil {
			a.log.Warn("render not kept for history", "template", bundle, "err", err)
		}
	}
}

// sourceChanges says which of the sources differ between two views, and by how much.
func sourceChanges(old, now *view.View, sources []view.Source) []string {
	var list []string
	for _, s := range sources {
		a, b := old.Get(s), now.Get(s)
		if b == nil || a == b || a != nil && a.Equal(b) {
			continue
		}
		list = append(list, s.String()+changeWords(a, b))
	}
	slices.Sort(list)
	return list
}

// changeWords says how a source has changed.
func changeWords(a, b view.Update) string {
	switch b := b.(type) {
	case *view.Tree:
		old, ok := a.(*view.Tree)
		if !ok {
			return fmt.Sprintf(": %s at %s", plural(b.Len(), "key"), b.Version())
		}
		keys, bytes := 0, 0
		old.Keys().Diff(b.Keys(), func(_ string, was, is *view.Key) {
			keys++
			if was != nil {
				bytes -= len(was.Value)
			}
			if is != nil {
				bytes += len(is.Value)
			}
		})
		return fmt.Sprintf(": %s -> %s, %s, %+d bytes", old.Version(), b.Version(), plural(keys, "key"), bytes)
	case *view.Group:
		old, ok := a.(*view.Group)
		if !ok {
			return fmt.Sprintf(": %s", plural(len(b.Members), "member"))
		}
		return memberWords(old.Members, b.Members)
	}
	return ""
}

// memberWords says who has come and gone.
func memberWords(old, now []view.Member) string {
	in := func(list []view.Member, m view.Member) *view.Member {
		for i := range list {
			if list[i].Znode == m.Znode {
				return &list[i]
			}
		}
		return nil
	}
	var text string
	n := 0
	add := func(sign string, m view.Member) {
		const most = 10
		if n++; n <= most {
			text += " " + sign + m.Address()
		}
	}
	for _, m := range old {
		if in(now, m) == nil {
			add("-", m)
		}
	}
	for _, m := range now {
		was := in(old, m)
		switch {
		case was == nil:
			add("+", m)
		case !was.Equal(m):
			add("~", m)
		}
	}
	return fmt.Sprintf(": %s,%s", plural(n, "member"), text)
}
