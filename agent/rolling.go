package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// rollingPath is where rolling reloads keep their permits.
const rollingPath = "/zkagent/rolling"

// reloadFleet is the agent as the reloads of bundles see it.
type reloadFleet Agent

// Term implements apply.Fleet.
func (f *reloadFleet) Term(election string) int64 { return f.hooks.Term(election) }

// RunLeader implements apply.Fleet.
func (f *reloadFleet) RunLeader(ctx context.Context, election string, c proc.Command) (proc.Result, error) {
	return f.hooks.RunLeading(ctx, election, c)
}

// Ledger implements apply.Fleet.
func (f *reloadFleet) Ledger(ctx context.Context, r apply.LeaderReload) (bool, func(error), error) {
	return f.hooks.BeginReload(ctx, hook.Reload(r))
}

// Permit implements apply.Fleet: a lease of the semaphore that all hosts with
// a bundle of this name share.
func (f *reloadFleet) Permit(ctx context.Context, bundle string, cfg *RollingConfig) (func(error), error) {
	a := (*Agent)(f)
	s, err := a.sessions.Session(ctx)
	if err != nil {
		return nil, err
	}
	path := session.JoinPath(rollingPath, files.Name(bundle))
	k, err := permits(ctx, s, path, cfg.Permits)
	if err != nil {
		return nil, err
	}
	hold, err := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path, K: k, Data: []byte(a.first.ID), Logger: a.log}).Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return func(error) {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout())
		defer cancel()
		if err := hold.Release(last); err != nil {
			a.log.Warn("permit not given back", "template", bundle, "err", err)
		}
	}, nil
}

// permits is K as a number. A share is of the agents that are there when the
// semaphore is first used; the number is then fixed in ZooKeeper.
func permits(ctx context.Context, s *session.Session, path, text string) (int, error) {
	share, isShare := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("permits %q is not a number or a share", text)
	}
	if !isShare {
		return max(int(n), 1), nil
	}
	data, _, err := s.Get(ctx, path)
	if err == nil {
		if k, bad := strconv.Atoi(strings.TrimSpace(string(data))); bad == nil && k > 0 {
			return k, nil
		}
	} else if !errors.Is(err, session.ErrNoNode) {
		return 0, err
	}
	agents, err := fleet.Live(ctx, s)
	if err != nil {
		return 0, err
	}
	return max(int(float64(agents)*n/100), 1), nil
}
