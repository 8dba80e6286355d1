package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/view"
)

func TestGroupFollower_HeldMembersAreACondition(t *testing.T) {
	var conds condition.Set
	set := &groupFollower{conds: &conds, name: "all"}
	one := &groupFollower{conds: &conds, name: "api"}
	group := func(name string, held bool) *view.Group {
		g := &view.Group{Name: name, Members: []view.Member{{ID: "a"}, {ID: "b", Held: held}}}
		if held {
			g.Holding = time.Unix(1, 0)
		}
		return g
	}
	subjects := func() string {
		var list []string
		for _, c := range conds.List() {
			list = append(list, c.Subject)
		}
		return strings.Join(list, " ")
	}
	one.note(group("api", false))
	if got := subjects(); got != "" {
		t.Errorf("nothing is held, and open are %q", got)
	}
	one.note(group("api", true))
	if got := conds.List(); len(got) != 1 || !strings.Contains(got[0].Text, "1 of 2 members") || !strings.Contains(got[0].Text, "accept api") {
		t.Errorf("got %+v", got)
	}
	set.note(&view.Groups{Name: "all", Groups: []*view.Group{group("db", true), group("web", false)}})
	if !conds.Has(condition.MembersHeld, "all/db") || conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	set.note(&view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	if conds.Has(condition.MembersHeld, "all/db") || !conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	set.life(ctx)
	set.note(&view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	one.note(group("api", false))
	if got := subjects(); got != "" {
		t.Errorf("open are %q", got)
	}
}
