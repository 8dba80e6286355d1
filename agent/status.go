package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Status returns the current status. It is computed on demand.
func (a *Agent) Status() show.Status {
	cfg, snap := a.cfg.Load(), a.loop.snapshot.Load()
	s := show.Status{
		Agent: show.AgentStatus{
			ID: cfg.ID, Host: cfg.Host, Version: a.first.Version, PID: os.Getpid(), Started: a.process.started,
			State: a.state(snap), StateDir: a.first.StateDir, Maintenance: a.hostMaint.Status(),
		},
		Summary: a.Summary(), Conditions: a.conds.List(),
		Sources: a.sourceStatus(cfg, snap), Templates: a.templateStatus(cfg, snap), Hooks: a.HookStatus(), Execs: a.execStatus(),
		Settings: *a.settings.state.Load(),
	}
	z := a.sessions.Status()
	s.ZooKeeper = show.ZooKeeperStatus{
		State: z.State.String(), Server: z.Server, Timeout: view.Seconds(z.Timeout), Since: z.Since,
		LastAnswer: z.LastAnswer, Expirations: z.Expirations, Reconnects: z.Reconnects, Watches: z.Watches,
		Resumed: z.Resumed, LastError: z.LastError, Warning: z.Warning, Outages: a.pastOutages(),
	}
	if z.SessionID != 0 {
		s.ZooKeeper.SessionID = hexID(z.SessionID)
	}
	s.Health = healthOf(s.Conditions, s.Agent.Maintenance != nil)
	a.unitStatus(cfg, snap, &s)
	return s
}

func (a *Agent) state(snap *snapshot) string {
	select {
	case <-a.loop.done:
		return "stopping"
	default:
	}
	switch {
	case snap.complete:
		return "running"
	case snap.cached:
		return "cached"
	}
	return "starting"
}

func (a *Agent) sourceStatus(cfg *Config, snap *snapshot) []show.SourceStatus {
	list := []show.SourceStatus{}
	for _, src := range cfg.Places() {
		s := show.SourceStatus{Kind: string(src.Kind), Name: src.Name, Path: src.Path, Changed: snap.live[src.Source]}
		s.Reported = !s.Changed.IsZero()
		switch u := snap.view.Get(src.Source).(type) {
		case *view.Tree:
			s.Version, s.Zxid, s.Size = u.Version(), u.Last, u.Len()
			if tree, ok := kindConfig.of(a.sup, src.Name); ok && u.Layout == config.LayoutVersioned {
				s.Known = tree.use(snap).Newer()
			}
		case *view.Group:
			s.Zxid, s.Size = u.Last, len(u.Members)
		case *view.Groups:
			s.Zxid, s.Size = u.Last, len(u.Groups)
		case *view.Leader:
			s.Zxid = u.Term
		}
		list = append(list, s)
	}
	return list
}

func (a *Agent) templateStatus(cfg *Config, snap *snapshot) []show.TemplateStatus {
	list := make([]show.TemplateStatus, 0, len(cfg.Bundles))
	for _, b := range cfg.Bundles {
		r := snap.report(b.Name)
		t := r.TemplateStatus
		t.Name, t.Position, t.Check, t.Sources = b.Name, b.Position, apply.CheckStatus(b.Check), []string{}
		t.PendingSince, t.PendingText = a.engine.PendingSince(b.Name), a.engine.PendingText(b.Name)
		t.LastReload = (*show.ReloadStatus)(a.engine.LastReload(b.Name))
		t.PendingReload = !t.PendingSince.IsZero()
		if shown := snap.bundle(b.Name); shown != nil {
			for _, s := range shown.Sources {
				t.Sources = append(t.Sources, s.String())
			}
		}
		if r.Err != nil {
			t.Error = r.Err.Error()
		}
		t.State = a.templateState(r, b.Name)
		list = append(list, t)
	}
	return list
}

func (a *Agent) unitStatus(cfg *Config, snap *snapshot, s *show.Status) {
	s.Configs, s.Groups = []show.ConfigStatus{}, []registry.GroupStatus{}
	s.GroupSets, s.Elections = []registry.GroupsStatus{}, []show.ElectionStatus{}
	for _, c := range cfg.Configs {
		if tree, ok := kindConfig.of(a.sup, c.Name); ok {
			st := show.ConfigStatus{Status: tree.watcher.Status()}
			if st.Err != nil {
				st.Error = st.Err.Error()
			}
			s.Configs = append(s.Configs, st)
		}
	}
	s.Services = a.services()
	for _, c := range cfg.Groups {
		if g, ok := kindGroup.of(a.sup, c.Name); ok {
			s.Groups = append(s.Groups, g.Status())
		}
	}
	for _, c := range cfg.GroupSets {
		if g, ok := kindGroups.of(a.sup, c.Name); ok {
			s.GroupSets = append(s.GroupSets, g.Status())
		}
	}
	for _, c := range cfg.Elections {
		e := show.ElectionStatus{Leader: view.Leader{Name: c.Name, Path: c.Path}, Held: a.hooks.Term(c.Name) != 0}
		if l, ok := snap.view.Leader(c.Name); ok {
			e.Leader = *l
		}
		s.Elections = append(s.Elections, e)
	}
}

// HookStatus lists the hooks with their last runs.
func (a *Agent) HookStatus() []show.HookStatus {
	cfg := a.cfg.Load()
	list := make([]show.HookStatus, 0, len(cfg.Hooks))
	for _, h := range cfg.Hooks {
		s := show.HookStatus{Name: h.Name, Leader: h.Leader, Command: h.Command.Text, Schedule: h.Schedule, Runs: a.hooks.Runs(h.Name), Triggers: []string{}}
		s.Here = h.Leader == "" || a.hooks.Term(h.Leader) != 0
		for _, src := range h.OnChange {
			s.Triggers = append(s.Triggers, "change of "+src.String())
		}
		if h.OnElected {
			s.Triggers = append(s.Triggers, command.EventElected)
		}
		if h.OnDeposed {
			s.Triggers = append(s.Triggers, command.EventDeposed)
		}
		if h.Schedule != "" {
			s.Triggers = append(s.Triggers, command.EventSchedule)
			s.Next = a.hooks.NextSlot(h)
		}
		if s.Runs == nil {
			s.Runs = []hook.Run{}
		}
		list = append(list, s)
	}
	return list
}

// RenderAll renders every bundle again and compares every file with the disk.
func (a *Agent) RenderAll(ctx context.Context) {
	a.loop.do(ctx, func() {
		now := time.Now()
		for _, b := range a.loop.bundles {
			b.force = true
			b.failures, b.retryAt = 0, time.Time{}
			b.settle.Note(now)
		}
	})
}

// Summary is the state in one line, for the service manager.
func (a *Agent) Summary() string {
	s := a.loop.snapshot.Load()
	count := map[string]int{}
	for _, b := range s.bundles {
		switch state := a.templateState(b.report, b.Config.Name); state {
		case "ok", "failed", "kept":
			count[state]++
		case "reload-failed":
			count["failed"]++
		default:
			count["waiting"]++
		}
	}
	parts := []string{term.Count(count["ok"], "template") + " ok"}
	for _, state := range []string{"failed", "kept", "waiting"} {
		if n := count[state]; n > 0 {
			parts[0] += fmt.Sprintf(", %d %s", n, state)
		}
	}
	zk := a.sessions.Status()
	switch {
	case zk.State == session.Connected:
		parts = append(parts, "ZooKeeper "+zk.Server)
	case zk.State == session.ReadOnly:
		parts = append(parts, "ZooKeeper "+zk.Server+" read-only")
	case s.cached:
		parts = append(parts, "running from the last known good state, ZooKeeper "+zk.State.String())
	default:
		parts = append(parts, "ZooKeeper "+zk.State.String())
	}
	for _, src := range s.view.Sources() {
		if l, _ := s.view.Get(src).(*view.Leader); l != nil && l.Mine {
			parts = append(parts, "leads "+src.Name)
		}
	}
	return strings.Join(parts, "; ")
}

// snapshot is what the loop publishes for status, metrics and hooks. Its maps and
// lists may be those of other snapshots, too, and are not changed.
type snapshot struct {
	view     view.View
	good     view.View // the latest view from which every bundle was in place; empty at first
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

// goodView returns the latest view from which every bundle was in place: each has reported
// for that view or a later one, without a failure in between.
func (l *loop) goodView() view.View {
	good, since := l.v, time.Time{}
	for _, b := range l.sorted {
		idle := (!b.inFlight || b.drifting) && !b.settle.Pending()
		if idle && !b.since.IsZero() {
			b.good = l.v
		}
		if b.good.At.Before(good.At) {
			good = b.good
		}
		if b.since.After(since) {
			since = b.since
		}
	}
	if l.complete && !good.At.IsZero() && !good.At.Before(since) {
		l.good = good
	}
	return l.good
}

func (l *loop) publish() {
	l.dirty = false
	s := &snapshot{
		view: l.v, good: l.goodView(), declared: l.declared, live: maps.Clone(l.live), complete: l.complete, cached: l.cached,
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
