package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
)

// deed is one action in the audit.
type deed struct {
	Time  time.Time `json:"time"`
	Where string    `json:"where"` // the config, or "this host"
	Who   string    `json:"who,omitempty"`
	What  string    `json:"what"`
	Why   string    `json:"why,omitempty"`
}

func newAuditCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "audit [NAME|PATH]", Short: "Show who published, rolled out, paused, halted or froze a config, and when",
		Long: `Show who published, rolled out, paused, resumed, aborted or froze a config, and when,
latest first: of all configs of the settings, or of one. If an agent
runs on this host, the list has the orders that it received, too: maintenance, an
accepted loss, a resignation.

Each act is noted where it takes effect: in the version, the rollout, the freeze,
the list of lifted halts or the events of the agent. The latest ones are kept.`,
		Example: "  zkagent audit /config/site",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var deeds []deed
			err := g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				targets, err := auditTargets(conf, args)
				if err != nil {
					return err
				}
				for _, t := range targets {
					if len(args) > 0 {
						if err := mustExist(ctx, s, t.path); err != nil {
							return err
						}
					}
					of, err := auditOf(ctx, s, t)
					if err != nil {
						return explain(err, t)
					}
					deeds = append(deeds, of...)
				}
				if len(args) > 0 {
					return nil
				}
				of, err := auditHalts(ctx, s)
				deeds = append(deeds, of...)
				return err
			})
			if err != nil {
				return err
			}
			if len(args) == 0 {
				deeds = append(deeds, localDeeds(c.Context(), g)...)
			}
			slices.Reverse(deeds) // deeds of one moment, too
			slices.SortStableFunc(deeds, func(a, b deed) int { return b.Time.Compare(a.Time) })
			return term.PrintRows(&g.Console, "deeds", deeds, []string{"WHEN", "WHERE", "WHO", "WHAT", "WHY"}, func(d deed) []string {
				return []string{d.Time.Format(time.RFC3339), d.Where, cmp.Or(d.Who, "-"), d.What, cmp.Or(d.Why, "-")}
			})
		},
	}
}

func auditTargets(conf *agent.Config, args []string) ([]target, error) {
	if len(args) > 0 {
		t, err := targetOf(conf, args[0])
		return []target{t}, err
	}
	if len(conf.Files) == 0 {
		return nil, usagef("name a config by its path, or give settings with config blocks by --config")
	}
	return listOf(conf.Configs, func(c *config.Config) target { return target{c.Name, c.Path, c.Layout} }), nil
}

func auditOf(ctx context.Context, s *session.Session, t target) ([]deed, error) {
	var deeds []deed
	versions, err := config.History(ctx, s, t.path)
	if err != nil && !errors.Is(err, config.ErrNoVersion) {
		return nil, err
	}
	for _, v := range versions {
		what := fmt.Sprintf("wrote version %d", v.Number)
		if v.RollbackOf > 0 {
			what += fmt.Sprintf(", the content of version %d", v.RollbackOf)
		}
		if v.Active {
			what += ", in use"
		}
		deeds = append(deeds, deed{v.Time, t.name, show.Joined("@", v.Author, v.Host), what, v.Message})
	}
	past, err := fleet.PastFreezes(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	for _, f := range past {
		deeds = append(deeds, deed{f.Since.UTC(), t.name, f.By, "froze it", f.Reason})
		if !f.Replaced {
			deeds = append(deeds, deed{f.Until.UTC(), t.name, f.EndedBy, "unfroze it", ""})
		}
	}
	rollouts, err := fleet.Rollouts(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	for _, r := range rollouts {
		for _, a := range r.Acts() {
			deeds = append(deeds, deed{a.At.UTC(), t.name, a.Who, r.Name + ": " + a.What, a.Why})
		}
	}
	frozen, err := fleet.Frozen(ctx, s, t.path)
	if frozen != nil {
		deeds = append(deeds, deed{frozen.Since.UTC(), t.name, frozen.By, "froze it", frozen.Reason})
	}
	return deeds, err
}

func auditHalts(ctx context.Context, s *session.Session) ([]deed, error) {
	var deeds []deed
	halted := func(h rolling.Halt) {
		deeds = append(deeds, deed{h.Time.UTC(), "template " + h.Bundle, h.Host, "halted its rolling reload", h.Reason})
	}
	halts, err := rolling.Halts(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, h := range halts {
		halted(h)
	}
	lifted, err := rolling.LiftedHalts(ctx, s)
	for _, l := range lifted {
		halted(l.Halt)
		deeds = append(deeds, deed{l.At.UTC(), "template " + l.Bundle, l.By, "lifted the halt of its rolling reload", ""})
	}
	return deeds, err
}

// localDeeds returns the orders that the agent of this host received.
func localDeeds(ctx context.Context, g *globals) []deed {
	var deeds []deed
	path, err := g.socket()
	if err != nil {
		return nil
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	_ = web.NewClient(path).Events(ctx, 0, false, func(e event.Event) bool { // Without an agent there are none.
		if e.Kind == "order" {
			deeds = append(deeds, deed{e.Time.UTC(), "this host", e.By, "gave the order " + e.Subject, e.Text})
		}
		return true
	})
	return deeds
}
