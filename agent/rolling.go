package agent

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/registry"
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
		last, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(ctx, func() {
			pace.Sleep(last, releaseLimit)
			cancel()
		})()
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

// releaseLimit is how long an agent that stops tries to halt the other hosts and to
// return its permit.
const releaseLimit = time.Minute

// halted opens and closes the condition of a host that must not start.
func (a *Agent) halted(bundle string, h *rolling.Halt) {
	text := ""
	if h != nil {
		text = fmt.Sprintf("%s failed at %s: %s; `zkagent reload --clear-halt %s` lets the hosts continue", h.Host, h.Time.Format(time.RFC3339), h.Reason, bundle)
	}
	a.conds.Open(condition.ReloadHalted, bundle, text)
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

// hostMaintenance is the maintenance of this host as a whole: no rollout asks for its vote, starts it or
// waits for it. It outlives the process when there is a state directory, and is safe
// for concurrent use.
type hostMaintenance struct {
	kept *files.Store[registry.Maintenance]

	mu      sync.Mutex // mu guards everything below.
	now     registry.Maintenance
	changed chan struct{} // closed at the next change
	timer   *time.Timer   // ends it by itself
}

// openMaintenance reads what a previous process has kept. With an error the host is not in
// maintenance.
func openMaintenance(stateDir string) (*hostMaintenance, error) {
	kept, err := files.OpenStore[registry.Maintenance](stateDir, "maintenance-host.json", nil)
	if err != nil {
		err = fmt.Errorf("read maintenance of the host: %w", err)
	}
	h := &hostMaintenance{kept: kept, changed: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	kept.Read(func(m registry.Maintenance) { h.now = m })
	h.arm()
	return h, err
}

// Set switches it; what cannot be kept is not switched.
func (h *hostMaintenance) Set(m registry.Maintenance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.Since = time.Now()
	if !m.On {
		m = registry.Maintenance{}
	}
	err := h.kept.Change(func(kept *registry.Maintenance) files.Write {
		*kept = m
		return files.WriteSave
	})
	if err != nil {
		return fmt.Errorf("keep maintenance of the host: %w", err)
	}
	h.now = m
	h.arm()
	h.report()
	return nil
}

// arm makes the maintenance end at its time. h.mu is held.
func (h *hostMaintenance) arm() {
	if h.timer != nil {
		h.timer.Stop()
	}
	if !h.now.On || h.now.Until.IsZero() {
		return
	}
	h.timer = time.AfterFunc(time.Until(h.now.Until), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.report()
	})
}

// report wakes the goroutines that wait for a change. h.mu is held.
func (h *hostMaintenance) report() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Reason is why the host is in maintenance, empty when it is not; the channel
// is closed at the next change.
func (h *hostMaintenance) Reason() (string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return "", h.changed
	}
	return cmp.Or(h.now.Reason, "no reason given"), h.changed
}

// Status is what is shown; nil: the host is not in maintenance.
func (h *hostMaintenance) Status() *registry.Maintenance {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.now.Active(time.Now()) {
		return nil
	}
	m := h.now
	return &m
}
