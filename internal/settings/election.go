package settings

import (
	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
)

type electionBlock struct {
	Name     string         `hcl:"name,label"`
	At       hcl.Range      `hcl:",def_range"`
	Path     hcl.Expression `hcl:"path" is:"znode path" doc:"Where the candidates stand."`
	Dialect  hcl.Expression `hcl:"dialect,optional" is:"string" default:"curator" enum:"curator|curator-selector|kazoo" doc:"Whose layout, when others contend on the same path: Curator's LeaderLatch or LeaderSelector, or kazoo's Election."`
	Priority hcl.Expression `hcl:"priority,optional" is:"number" default:"0" min:"0" max:"100" doc:"Candidates with a higher number join later, by that many session timeouts; nobody is pre-empted."`
}

func (s *Settings) resolveElections(blocks []*electionBlock) {
	for _, b := range blocks {
		r := s.read(b, b.At)
		c := agent.ElectionConfig{Name: b.Name, Path: r.znode(&b.Path), Dialect: r.str(&b.Dialect), Priority: r.integer(&b.Priority)}
		s.samePath("election", b.Name, c.Path, r.where(&b.Path))
		s.Config.Elections = append(s.Config.Elections, c)
	}
}
