package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

func TestGroups_HeldMembersAreACondition(t *testing.T) {
	var conds condition.Set
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
	announceGroups(&conds, group("api", false))
	if got := subjects(); got != "" {
		t.Errorf("nothing is held, and open are %q", got)
	}
	announceGroups(&conds, group("api", true))
	if got := conds.List(); len(got) != 1 || !strings.Contains(got[0].Text, "1 of 2 members") || !strings.Contains(got[0].Text, "accept api") {
		t.Errorf("got %+v", got)
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("db", true), group("web", false)}})
	if !conds.Has(condition.MembersHeld, "all/db") || conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	if conds.Has(condition.MembersHeld, "all/db") || !conds.Has(condition.MembersHeld, "all/web") || !conds.Has(condition.MembersHeld, "api") {
		t.Errorf("got %q", subjects())
	}
	announceGroups(&conds, group("api", true))
	a := &Agent{conds: &conds}
	a.retainConditions(&Config{Groups: []registry.GroupConfig{{Name: "api"}}})
	if got := subjects(); got != "api" {
		t.Errorf("open are %q, and the settings have api", got)
	}
	announceGroups(&conds, &view.Groups{Name: "all", Groups: []*view.Group{group("web", true)}})
	a.retainConditions(&Config{GroupSets: []registry.GroupConfig{{Name: "all"}, {Name: "api"}}})
	if got := subjects(); got != "all/web" {
		t.Errorf("open are %q, and the settings have the sets all and api", got)
	}
	a.retainConditions(&Config{})
	if got := subjects(); got != "" {
		t.Errorf("open are %q", got)
	}
}
