package agent

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// serviceUnit makes a registrar. One that replaces another of the same place
// takes over its znode and what its checks know.
func (a *Agent) serviceUnit(c registry.ServiceConfig, old any) unitParts {
	c.Logger, c.Metrics, c.Run = a.log, a.metrics.of.registry, a.checkRun
	c.Changed = func() { pace.Poke(a.wake.services) }
	if a.first.StateDir != "" && c.StateFile == "" {
		c.StateFile = files.StateFile(a.first.StateDir, "maintenance", c.Name)
	}
	r := registry.NewRegistrar(c)
	if former, ok := old.(*registry.Registrar); ok {
		r.Inherit(former)
	}
	return unitParts{
		unit:  unitFunc(func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return r.Run(ctx, s) }),
		value: r,
		life:  func(ctx context.Context) { _ = r.RunChecks(ctx) },
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+drainMargin)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				a.log.Warn("service did not drain", "service", c.Name, "err", err)
			}
		},
		replaces: func(next any) bool {
			n, ok := next.(registry.ServiceConfig)
			return ok && n.Group == c.Group && n.Format == c.Format && n.MemberID == c.MemberID
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
