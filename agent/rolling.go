package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// reloadFleet is the other hosts as the reloads of bundles see them: by the elections of
// the hooks, and by the permits of rolling reloads.
type reloadFleet struct {
	*hook.Engine

	agent *Agent
}

// Permit implements apply.Fleet.
func (f reloadFleet) Permit(ctx context.Context, bundle string, cfg *apply.RollingConfig, halted func()) (func(*apply.Halt) error, error) {
	a := f.agent
	s, err := a.left.Session(ctx)
	if err != nil {
		return nil, err
	}
	c := rolling.Config{Agent: a.first.ID, Bundle: bundle, Permits: cfg.Permits, Logger: a.log, Halted: func(h *rolling.Halt) {
		a.halted(bundle, h)
		if h != nil && halted != nil {
			halted()
		}
	}}
	p, err := rolling.Acquire(ctx, s, c)
	if err != nil {
		a.halted(bundle, nil)
		return nil, err
	}
	return func(failed *apply.Halt) error {
		last, cancel := outlive(ctx, releaseLimit)
		defer cancel()
		var halt *rolling.Halt
		if failed != nil {
			halt = &rolling.Halt{Bundle: bundle, Host: a.first.ID, Reason: failed.Reason, Time: failed.Time}
		}
		err := p.Release(last, a.left.Session, halt)
		if err != nil {
			a.log.Warn("cannot return the permit", "template", bundle, "err", err)
		}
		return err
	}, nil
}

// haltOthers halts the rolling reloads that failed on this host when it could not tell
// the others: it was killed, or had no connection.
func (a *Agent) haltOthers(ctx context.Context, s *session.Session) error {
	for bundle, h := range a.engine.Halts() {
		if err := rolling.Stop(ctx, s, rolling.Halt{Bundle: bundle, Host: a.first.ID, Reason: h.Reason, Time: h.Time}); err != nil {
			return fmt.Errorf("halt the rolling reload of %s: %w", bundle, err)
		}
		a.engine.Halted(bundle, h)
	}
	return nil
}

// outlive makes a context that ends some time after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pace.Sleep(last, d)
		cancel()
	})
	return last, func() { stop(); cancel() }
}

// releaseLimit is how long an agent that stops tries to halt the other hosts and to
// return its permit.
const releaseLimit = time.Minute

// halted opens and closes the condition of a host that must not start.
func (a *Agent) halted(bundle string, h *rolling.Halt) {
	text := ""
	if h != nil {
		text = fmt.Sprintf("%s failed at %s: %s; `zkagent reload --clear-halt %s` lets the hosts continue", h.Host, h.Time.Format(time.RFC3339), h.Reason, bundle)
	}
	a.conds.SetText(condition.ReloadHalted, bundle, text)
}

// rollingUnit keeps this agent among the hosts that have a bundle: shares are
// counted from them. It first tells the others of a failure that they do not know.
func (a *Agent) rollingUnit(bundle, id string) unitParts {
	return unitParts{run: func(ctx context.Context, s *session.Session, _ func(view.Update)) error {
		switch err := a.haltOthers(ctx, s); {
		case session.ActionFor(err) == session.GiveUp:
			a.log.Warn("the other hosts are not halted", "err", err)
		case err != nil:
			return err
		}
		return rolling.Hosts(bundle, id, a.log).Run(ctx, s)
	}}
}
