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

// observes reports whether anything wants to know who leads while another
// does: that costs a wake-up of every candidate at each change.
func observes(hooks []hook.Config, bundles []*bundle, election string) bool {
	source := view.Source{Kind: view.KindElection, Name: election}
	return slices.ContainsFunc(hooks, func(h hook.Config) bool { return slices.Contains(h.OnChange, source) }) ||
		slices.ContainsFunc(bundles, func(b *bundle) bool { return slices.Contains(b.Sources, source) })
}

func (a *Agent) electionUnit(e election.Config) unitParts {
	e.Keep, e.Logger, e.Metrics = true, a.log, a.metrics.of.election
	e.Lead = func(ctx context.Context, t election.Term) { a.hooks.Lead(ctx, e.Name, e.Path, t) }
	c := election.New(e)
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
