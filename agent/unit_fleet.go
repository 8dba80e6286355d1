package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// fleetUnit makes the unit that keeps this host's record in ZooKeeper.
func (a *Agent) fleetUnit(id string) unitParts {
	announcer := fleet.NewAnnouncer(fleet.AnnouncerConfig{
		ID: id, Host: a.first.Host, Record: a.record, Changed: a.wake.record, Logger: a.log,
		Health: func() fleet.Health {
			reason, _ := a.hostMaint.Reason()
			return healthOf(a.conds.List(), reason != "")
		},
		Rival: func(text string) { a.conds.Open(condition.AgentIDTaken, "", text) },
	})
	return unitParts{run: func(ctx context.Context, s *session.Session, _ func(view.Update)) error {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case <-a.loop.ready: // What every start waits for is not for the record.
		}
		return announcer.Run(ctx, s)
	}}
}

// record is what this host says of itself, in the words that every view uses.
func (a *Agent) record() fleet.Record {
	cfg, snap := a.cfg.Load(), a.loop.snapshot.Load()
	r := fleet.Record{
		Version: a.first.Version, Since: a.process.started.UTC().Truncate(time.Second),
		Configs: map[string]fleet.ConfigUse{}, Files: map[string]string{}, Services: map[string]fleet.ServiceUse{},
	}
	r.Maintenance, _ = a.hostMaint.Reason()
	open := a.conds.List()
	r.Health = healthOf(open, r.Maintenance != "")
	r.At = a.process.healthSince(r.Health)
	for _, c := range open {
		sum := sha256.Sum256([]byte(c.Text))
		f := fleet.Fault{Code: c.Code, Subject: c.Subject, Since: c.Since.UTC().Truncate(time.Second), Exit: c.Exit, Digest: hex.EncodeToString(sum[:4])}
		if c.Code == condition.TemplateFailed.Code {
			f.Stage = snap.report(c.Subject).Stage
		}
		r.Faults = append(r.Faults, f)
	}
	for _, b := range snap.bundles {
		state := a.templateState(b.report, b.Config.Name)
		if v := b.report.Version; v != "" && !flat(snap, b) {
			state += "@" + v
		}
		r.Files[b.Config.Name] = state
	}
	for _, c := range cfg.Configs {
		if tree, ok := kindConfig.of(a.sup, c.Name); ok {
			accepted, _ := snap.view.Tree(c.Name)
			if use := tree.use(snap); use != (fleet.ConfigUse{}) && (accepted == nil || accepted.Layout == config.LayoutVersioned) {
				use.Path = c.Path
				r.Configs[c.Name] = use
			}
		}
	}
	for _, s := range a.services() {
		use := fleet.ServiceUse{State: s.State, Since: s.Since.UTC().Truncate(time.Second)}
		if c := failedCheck(s); c != nil {
			use.Check, use.Since, use.Exit = cmp.Or(c.Name, c.Kind), c.Since.UTC().Truncate(time.Second), c.Exit
			use.State = registry.StateCritical
		}
		r.Services[s.Name] = use
	}
	for _, e := range cfg.Elections {
		if l, ok := snap.view.Leader(e.Name); ok && l.Mine {
			r.Leads = append(r.Leads, e.Name)
		}
	}
	for _, src := range snap.view.Sources() {
		if g, ok := snap.view.Group(src.Name); ok && src.Kind == view.KindGroup && !g.Holding.IsZero() {
			r.Holds = append(r.Holds, g.Name)
		}
	}
	return r
}

// flat reports whether the first config of a bundle has no versions.
func flat(snap *snapshot, b *shownBundle) bool {
	for _, src := range b.Sources {
		if tree, ok := snap.view.Get(src).(*view.Tree); ok {
			return tree.Layout != config.LayoutVersioned
		}
	}
	return false
}

func healthOf(open []condition.Condition, maintained bool) fleet.Health {
	health := fleet.OK
	if maintained {
		health = fleet.Maintenance
	}
	for _, c := range open {
		worse := fleet.Degraded
		if c.Kind().Failing {
			worse = fleet.Failing
		}
		if worse.Rank() < health.Rank() {
			health = worse
		}
	}
	return health
}

func (p *process) healthSince(now fleet.Health) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.health != now {
		p.health, p.since = now, time.Now().UTC().Truncate(time.Second)
	}
	return p.since
}

// templateState is the state of a bundle in one word: a reload that is being
// retried, or is pending, is not ok.
func (a *Agent) templateState(r bundleReport, name string) string {
	state, last := cmp.Or(r.State, "waiting"), a.engine.LastReload(name)
	switch {
	case state != "ok" && (state != "waiting" || last == nil): // With a reload the first apply has swapped its files.
		return state
	case last != nil && last.Error != "":
		return "reload-failed"
	case !a.engine.PendingSince(name).IsZero() && a.reloadsHere(name):
		return "reloading"
	}
	return state
}

// reloadsHere reports whether this host runs the reload of a bundle: one that the
// leader runs for all is pending on the other hosts until they see that it was done.
func (a *Agent) reloadsHere(name string) bool {
	for _, b := range a.cfg.Load().Bundles {
		if b.Name == name && b.Reload != nil && b.Reload.Leader != "" {
			return a.hooks.Term(b.Reload.Leader) != 0
		}
	}
	return true
}

// services are the services of the settings, as their registrars report them.
func (a *Agent) services() []registry.ServiceStatus {
	list := []registry.ServiceStatus{}
	for _, c := range a.cfg.Load().Services {
		if r, ok := kindService.of(a.sup, c.Name); ok {
			list = append(list, r.Status())
		}
	}
	return list
}

// failedCheck is the first check of a service that has fallen; nil: none has.
func failedCheck(s registry.ServiceStatus) *registry.CheckStatus {
	for i, c := range s.Checks {
		if c.State == registry.Critical {
			return &s.Checks[i]
		}
	}
	return nil
}
