package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// groupFollower is a group, or a set of groups. A condition is open while a guard
// holds members.
type groupFollower struct {
	follow Unit
	conds  *condition.Set
	name   string // of the group or the set

	mu    sync.Mutex // guards ended
	ended bool       // the settings no longer name it
}

// Run implements [Unit].
func (g *groupFollower) Run(ctx context.Context, s *session.Session, up func(view.Update)) error {
	return g.follow.Run(ctx, s, func(u view.Update) {
		g.note(u)
		up(u)
	})
}

// note opens and closes the conditions that belong to a new state.
func (g *groupFollower) note(u view.Update) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	switch v := u.(type) {
	case *view.Group:
		g.announce(v.Name, v.Name, v)
	case *view.Groups:
		g.conds.Set(condition.NameRefused, "groups "+v.Name, refusedNames(v))
		there := map[string]bool{}
		for _, one := range v.Groups {
			subject := v.Name + "/" + one.Name
			there[subject] = true
			g.announce(subject, v.Name+" "+one.Name, one)
		}
		g.conds.Retain(condition.MembersHeld, func(subject string) bool { return there[subject] || !g.owns(subject) })
	}
}

// announce is note for one group; command is how accept names it.
func (g *groupFollower) announce(subject, command string, v *view.Group) {
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
	g.conds.SetText(condition.MembersHeld, subject, text)
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

// owns reports whether the subject of a condition is one of this unit's.
func (g *groupFollower) owns(subject string) bool {
	return subject == g.name || strings.HasPrefix(subject, g.name+"/")
}

// life closes the conditions when the settings no longer name the unit.
func (g *groupFollower) life(ctx context.Context) {
	<-ctx.Done()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.conds.Retain(condition.MembersHeld, func(subject string) bool { return !g.owns(subject) })
}

func (a *Agent) groupUnit(c registry.GroupConfig) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.of.registry
	c.Problem = func(_ string, err error) { a.conds.Set(condition.SourceUnusable, "group "+c.Name, err) }
	g := registry.NewGroup(c)
	return a.followGroup(unitFunc(view.Untyped(g.Run)), g, c.Name)
}

func (a *Agent) groupsUnit(c registry.GroupConfig) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.of.registry
	c.Problem = func(group string, err error) {
		a.conds.Set(condition.SourceUnusable, strings.TrimSuffix("groups "+c.Name+"/"+group, "/"), err)
	}
	g := registry.NewGroups(c)
	return a.followGroup(unitFunc(view.Untyped(g.Run)), g, c.Name)
}

func (a *Agent) followGroup(u Unit, value any, name string) unitParts {
	f := &groupFollower{follow: u, conds: a.conds, name: name}
	return unitParts{unit: f, life: f.life, value: value}
}
