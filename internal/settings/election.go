package settings

import (
	"cmp"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/session"
)

type electionBlock struct {
	Name      string    `hcl:"name,label"`
	At        hcl.Range `hcl:",def_range"`
	Path      text      `hcl:"path" is:"znode path" doc:"Where the candidates stand."`
	Dialect   text      `hcl:"dialect,optional" is:"string" default:"curator" enum:"curator|curator-selector|kazoo" doc:"Whose layout, when others contend on the same path: Curator's LeaderLatch or LeaderSelector, or kazoo's Election."`
	JoinDelay duration  `hcl:"join_delay,optional" is:"duration" default:"0s" max:"1h" doc:"How long the candidate waits before it joins. Set it on a host that should lead only while others are away. A leader is never replaced because another host joins."`
	Priority  number    `hcl:"priority,optional" is:"number" default:"0" min:"0" max:"100" doc:"The previous way to say join_delay, in session timeouts. It draws a warning."`
}

func (s *Settings) resolveElections(blocks []*electionBlock) {
	for _, b := range blocks {
		c := agent.ElectionConfig{Name: b.Name, Path: b.Path.Value, Dialect: b.Dialect.Value, JoinDelay: b.JoinDelay.Value}
		if n := b.Priority.Value; n > 0 {
			delay := time.Duration(n) * cmp.Or(s.Config.ZooKeeper.Timeout, session.DefaultTimeout)
			if b.JoinDelay.Set {
				s.errorAt(b.Priority.At, "Two delays", "join_delay and priority say the same; keep join_delay.")
			} else {
				s.warnAt(b.Priority.At, "Former name", "Write join_delay = %q instead of priority = %d.", delay, n)
			}
			c.JoinDelay = delay
		}
		s.samePath("election", b.Name, c.Path, b.Path.At)
		s.Config.Elections = append(s.Config.Elections, c)
	}
}
