package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/leftover"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

func newLeftovers(a *Agent) *leftover.Sweeper {
	return leftover.New(leftover.Owner{
		Session: a.sessions.Session, Present: func() leftover.Settings { return registered{a.cfg.Load(), a.log} }, Log: a.log,
		First: func(ctx context.Context, s *session.Session) error {
			if err := a.haltOthers(ctx, s); err != nil {
				return err
			}
			return a.hooks.WaitGuards(ctx, s.Timeout())
		},
	})
}

// registered is what settings register.
type registered struct {
	*Config
	log *slog.Logger
}

// Wanted lists the znodes that units would take over, or use again, in session s.
func (cfg registered) Wanted(ctx context.Context, s *session.Session) (*leftover.Wanted, error) {
	w := &leftover.Wanted{Paths: map[string]bool{fleet.AgentPath(cfg.ID): true}, Lines: map[string]string{}}
	for _, c := range cfg.Services {
		paths, err := c.Own(ctx, s)
		if _, asked := errors.AsType[*session.Error](err); asked && session.ActionFor(err) != session.GiveUp {
			return nil, fmt.Errorf("service %s: %w", c.Name, err)
		}
		if err != nil {
			// Its znode is not known among the others: keep all.
			cfg.log.Warn("cannot look for the member of a previous process", "service", c.Name, "err", err)
			w.Dirs = append(w.Dirs, c.Groups...)
			continue
		}
		for _, path := range paths {
			w.Paths[path] = true
		}
	}
	for _, e := range cfg.Elections {
		line, err := recipe.Candidates(e.Path, e.Dialect, nil)
		if err != nil {
			w.Dirs = append(w.Dirs, e.Path)
			continue
		}
		w.Lines[e.Path] = line.Mark()
	}
	for _, c := range cfg.Configs {
		w.Paths[fleet.SubscriptionPath(c.Path, cfg.ID)] = true
	}
	for _, b := range cfg.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			w.Paths[rolling.HostPath(b.Name, cfg.ID)] = true
		}
	}
	// Permits of rolling reloads and of rollouts are not adopted: a host that
	// still needs one asks again, and a permit that is kept would block the fleet.
	return w, nil
}

// claims names what the units of the settings register.
func (c *Config) claims() []string {
	var list []string
	for _, s := range c.Services {
		for _, group := range s.Groups {
			list = append(list, fmt.Sprintf("service %q %q %q in %s", s.Name, s.Format, s.MemberID, group))
		}
	}
	for _, e := range c.Elections {
		list = append(list, "candidate of "+e.Dialect+" in "+e.Path)
	}
	for _, x := range c.Configs {
		list = append(list, "subscription to "+x.Path)
	}
	return list
}
