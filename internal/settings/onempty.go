package settings

import (
	"cmp"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/view"
)

// OnEmpty is what one template does while no member of a group is up.
type OnEmpty struct {
	Template string `json:"template"` // BUNDLE or BUNDLE/TEMPLATE
	Group    string `json:"group"`
	OnEmpty  string `json:"on_empty"` // keep, render or fail
	Because  string `json:"because"`
}

// OnEmpty lists the rule that holds for each group that a template names.
func (s *Settings) OnEmpty() []OnEmpty {
	rules := map[string]string{}
	for _, g := range s.Config.Groups {
		rules[g.Name] = g.OnEmpty
	}
	for _, g := range s.Config.GroupSets {
		rules[g.Name+"/"] = g.OnEmpty
	}
	list := []OnEmpty{}
	for _, b := range s.Config.Bundles {
		for i := range b.Templates {
			f := &b.Templates[i]
			t, err := f.Parse()
			if err != nil {
				continue // it is among the diagnostics
			}
			name := b.Name
			if f.Name != name {
				name += "/" + f.Name
			}
			for _, u := range t.Uses().Uses {
				if u.Source.Kind != view.KindGroup {
					continue
				}
				set, _, inSet := strings.Cut(u.Source.Name, "/")
				rule := OnEmpty{name, u.Source.Name, rules[u.Source.Name], "on_empty of the group"}
				if inSet {
					rule.OnEmpty = cmp.Or(rule.OnEmpty, rules[set+"/"])
				}
				switch {
				case rule.OnEmpty != "":
				case t.Else(u.Source.Name):
					rule.OnEmpty, rule.Because = "render", "the template has an {{ else }} for it"
				default:
					rule.OnEmpty, rule.Because = "keep", "the template has no {{ else }} for it"
				}
				if !slices.Contains(list, rule) {
					list = append(list, rule)
				}
			}
		}
	}
	return list
}
