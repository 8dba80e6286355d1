package settings

import (
	"cmp"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/session"
)

type electionBlock struct {
	Name      string         `hcl:"name,label"`
	At        hcl.Range      `hcl:",def_range"`
	Path      hcl.Expression `hcl:"path" is:"znode path" doc:"Where the candidates stand."`
	Dialect   hcl.Expression `hcl:"dialect,optional" is:"string" default:"curator" enum:"curator|curator-selector|kazoo" doc:"Whose layout, when others contend on the same path: Curator's LeaderLatch or LeaderSelector, or kazoo's Election."`
	JoinDelay hcl.Expression `hcl:"join_delay,optional" is:"duration" default:"0s" max:"1h" doc:"How long the candidate waits before it joins. Set it on a host that should lead only while others are away. A leader is never replaced because another host joins."`
	Priority  hcl.Expression `hcl:"priority,optional" is:"number" default:"0" min:"0" max:"100" doc:"The former way to say join_delay, in session timeouts. It draws a warning."`
}

func (s *Settings) resolveElections(blocks []*electionBlock) {
	for _, b := range blocks {
		r := s.read(b, b.At)
		c := agent.ElectionConfig{Name: b.Name, Path: r.znode(&b.Path), Dialect: r.str(&b.Dialect), JoinDelay: r.duration(&b.JoinDelay)}
		if n := r.integer(&b.Priority); n > 0 {
			delay := time.Duration(n) * cmp.Or(s.Config.ZooKeeper.Timeout, session.DefaultTimeout)
			if r.isSet(&b.JoinDelay) {
				s.errorAt(r.where(&b.Priority), "Two delays", "join_delay and priority say the same; keep join_delay.")
			} else {
				s.warnAt(r.where(&b.Priority), "Former name", "Write join_delay = %q instead of priority = %d.", delay, n)
			}
			c.JoinDelay = delay
		}
		s.samePath("election", b.Name, c.Path, r.where(&b.Path))
		s.Config.Elections = append(s.Config.Elections, c)
	}
}
