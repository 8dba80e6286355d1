package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// electionKey is what a candidate is made of.
type electionKey struct {
	ElectionConfig
	ID      string
	Observe bool
}

// observes reports whether anything wants to know who leads while another
// does: that costs a wake-up of every candidate at each change.
func observes(hooks []hook.Config, bundles []*bundle, election string) bool {
	source := view.Source{Kind: view.KindElection, Name: election}
	return slices.ContainsFunc(hooks, func(h hook.Config) bool { return slices.Contains(h.OnChange, source) }) ||
		slices.ContainsFunc(bundles, func(b *bundle) bool { return slices.Contains(b.Sources, source) })
}

func (a *Agent) electionUnit(k electionKey) unitParts {
	e := k.ElectionConfig
	c := election.New(election.Config{
		Name: e.Name, Path: e.Path, ID: k.ID, Dialect: e.Dialect, Observe: k.Observe, Keep: true,
		JoinDelay: e.JoinDelay,
		Logger:    a.log, Metrics: a.metrics.of.election,
		Lead: func(ctx context.Context, t election.Term) { a.hooks.Lead(ctx, e.Name, e.Path, t) },
	})
	return unitParts{
		run: func(ctx context.Context, s *session.Session, up func(view.Update)) error {
			return c.Run(ctx, s, func(l *view.Leader) {
				refused := ""
				if l.RawID != "" {
					refused = fmt.Sprintf("the leader's znode %+q has the id %+q, which is not allowed", l.Znode, l.RawID)
				}
				a.conds.SetText(condition.NameRefused, "election "+e.Name, refused)
				up(l)
			})
		}, value: c,
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMargin)
			defer cancel()
			if err := c.Resign(ctx); err != nil {
				a.log.Debug("cannot resign", "election", e.Name, "err", err)
			}
		},
	}
}
