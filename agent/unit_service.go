package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// moveWithin is how long a member stays in its previous place while it cannot join the new
// one.
const moveWithin = time.Minute

// serviceUnit makes a registrar. One that replaces another takes over what its checks
// know, and its znodes in the same groups.
func (a *Agent) serviceUnit(c registry.ServiceConfig, old any) unitParts {
	c.Logger, c.Metrics, c.Run = a.log, a.metrics.of.registry, a.checkRun
	c.Changed = func() { pace.Notify(a.wake.services) }
	if a.first.StateDir != "" && c.StateFile == "" {
		c.StateFile = filepath.Join(a.first.StateDir, "maintenance-"+c.Name+".json")
	}
	r := registry.NewRegistrar(c)
	if previous, ok := old.(*registry.Registrar); ok {
		r.Inherit(previous)
	}
	return unitParts{
		run:   func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return r.Run(ctx, s) },
		value: r,
		life:  func(ctx context.Context) { _ = r.RunChecks(ctx) },
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+drainMargin)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				a.log.Warn("service did not drain", "service", c.Name, "err", err)
			}
		},
		joined: func(ctx context.Context, previous any) {
			if old, ok := previous.(*registry.Registrar); !ok || !old.Status().Registered {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, moveWithin)
			defer cancel()
			select {
			case <-r.Joined():
			case <-ctx.Done():
			}
		},
	}
}

// checkRun runs the command of an exec check.
func (a *Agent) checkRun(ctx context.Context, args []string, limit int) (output string, code int, err error) { //nolint:nonamedreturns // a string and an int need names.
	res, err := a.plainRun(ctx, proc.Command{Args: args, Env: a.cfg.Load().Env.List(), OutputLimit: limit})
	if e, ok := errors.AsType[*proc.ExitError](err); ok && e.Cause == nil && res.Signal == "" {
		return res.Output, res.Code, nil
	}
	return res.Output, res.Code, err
}

// followServices keeps the conditions of services in step with their registrars,
// and the record of this host with its maintenance.
func (a *Agent) followServices(ctx context.Context) {
	previous := ""
	for {
		list := a.services()
		a.announceServices(list)
		reason, maintained := a.hostMaint.Reason()
		var b strings.Builder
		b.WriteString(reason)
		for _, s := range list {
			fmt.Fprintf(&b, "\x00%s %s %d", s.Name, s.State, s.Since.Unix())
		}
		if b.String() != previous { // mostly it is one more result of a check
			previous = b.String()
			pace.Notify(a.wake.record)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake.services:
		case <-maintained:
		}
	}
}

// announceServices opens a condition for each service that its checks have given up,
// and for each that is not in ZooKeeper although it should be.
func (a *Agent) announceServices(list []registry.ServiceStatus) {
	var critical, missing []string
	// A read-only server registers nothing. The members of the session that waits for a
	// majority are still there, and the condition zookeeper-read-only says the rest.
	readOnly := a.sessions.Status().State == session.ReadOnly
	for _, s := range list {
		if c := failedCheck(s); c != nil && s.Maintenance == nil {
			critical = append(critical, s.Name)
			text := "check " + cmp.Or(c.Name, c.Kind) + " has failed: " + strings.Join(strings.Fields(c.Output), " ")
			a.conds.OpenWith(condition.ServiceCritical, s.Name, strings.TrimSuffix(text, ": "), c.Exit)
			continue
		}
		if !s.Registered && !readOnly && s.Maintenance == nil && s.State != registry.StateDraining && s.State != registry.StateLeft {
			missing = append(missing, s.Name)
			a.conds.Open(condition.ServiceNotRegistered, s.Name, whyMissing(s))
		}
	}
	a.conds.Retain(condition.ServiceCritical, func(name string) bool { return slices.Contains(critical, name) })
	a.conds.Retain(condition.ServiceNotRegistered, func(name string) bool { return slices.Contains(missing, name) })
}

func whyMissing(s registry.ServiceStatus) string {
	switch {
	case s.Error != "":
		return s.Error
	case s.State == registry.StateUnknown && len(s.Checks) > 0:
		return "its checks have not passed yet"
	}
	return "it is being registered"
}
