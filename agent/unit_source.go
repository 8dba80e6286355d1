package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// followGroup makes the unit of a group, or of a set of groups.
func (a *Agent) followGroup(run unitRun, value any) unitParts {
	return unitParts{value: value, run: func(ctx context.Context, s *session.Session, up func(view.Update)) error {
		return run(ctx, s, func(u view.Update) {
			announceGroups(a.conds, u)
			up(u)
		})
	}}
}

// announceGroups opens and closes the conditions that belong to a new state.
func announceGroups(conds *condition.Set, u view.Update) {
	switch v := u.(type) {
	case *view.Group:
		announceHeld(conds, v.Name, v.Name, v)
	case *view.Groups:
		conds.Set(condition.NameRefused, "groups "+v.Name, refusedNames(v))
		for _, one := range v.Groups {
			announceHeld(conds, v.Name+"/"+one.Name, v.Name+" "+one.Name, one)
		}
		conds.Retain(condition.MembersHeld, func(subject string) bool {
			group, ofSet := strings.CutPrefix(subject, v.Name+"/")
			_, there := v.Group(group)
			return there || !ofSet
		})
	}
}

// announceHeld says that a guard holds members of a group; command is how accept names it.
func announceHeld(conds *condition.Set, subject, command string, v *view.Group) {
	text := ""
	if !v.Holding.IsZero() {
		held := 0
		for i := range v.Members {
			if v.Members[i].Held {
				held++
			}
		}
		text = fmt.Sprintf("%d of %d members have vanished from ZooKeeper at once and are kept; `zkagent members accept %s` believes it", held, len(v.Members), command)
	}
	conds.SetText(condition.MembersHeld, subject, text)
}

// refusedNames is the error of a set whose parent has children that are no names.
func refusedNames(v *view.Groups) error {
	const most = 5
	if len(v.RawNames) == 0 {
		return nil
	}
	var list []string
	for _, name := range v.RawNames[:min(len(v.RawNames), most)] {
		list = append(list, fmt.Sprintf("%+q", session.JoinPath(v.Path, name)))
	}
	if n := len(v.RawNames) - most; n > 0 {
		list = append(list, fmt.Sprintf("and %d more", n))
	}
	return fmt.Errorf("not a group, because its name is not allowed: %s", strings.Join(list, ", "))
}

// followed is the configuration of what follows a group, or a set of groups.
func (a *Agent) followed(kind string, c registry.GroupConfig) registry.GroupConfig {
	c.Logger, c.Metrics = a.log, a.metrics.of.registry
	c.Before = a.groupsBefore(view.Source{Kind: view.Kind(kind), Name: c.Name})
	c.Problem = func(group string, err error) {
		subject := kind + " " + c.Name
		if kind == string(kindGroups) && group != "" {
			subject += "/" + group
		}
		a.conds.Set(condition.SourceUnusable, subject, err)
	}
	return c
}

// groupsBefore returns the groups of a source as they were in use last, in this process or
// in the one before it.
func (a *Agent) groupsBefore(s view.Source) []*view.Group {
	u := a.loop.snapshot.Load().view.Get(s)
	if u == nil && a.loop.lastGood != nil {
		u = a.loop.lastGood.Get(s)
	}
	switch u := u.(type) {
	case *view.Group:
		return []*view.Group{u}
	case *view.Groups:
		return u.Groups
	}
	return nil
}

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
