package election

import (
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

// state is one thing that Run has learned.
type state struct {
	mine *view.Leader // what our own candidacy knows: whether we lead
	seen *view.Leader // who stands first
}

// report turns states into updates: our own term counts first, then what was
// seen. It sends only what differs from the update before, and returns when
// states is closed.
func (c *Candidate) report(states <-chan state, up func(*view.Leader)) {
	nobody := view.Leader{Name: c.cfg.Name, Path: c.cfg.Path}
	mine, seen, observed := nobody, nobody, !c.cfg.Observe
	var last *view.Leader
	for st := range states {
		if st.mine != nil {
			mine = *st.mine
		}
		if st.seen != nil {
			seen, observed = *st.seen, true
		}
		now := seen
		if mine.Mine {
			now = mine
		}
		// While nothing is known yet, nothing is told.
		if !mine.Mine && !observed || last != nil && *last == now {
			continue
		}
		last = &now
		c.cfg.Metrics.leads(c.cfg.Name, now.Mine)
		if up != nil {
			up(last)
		}
	}
	c.cfg.Metrics.leads(c.cfg.Name, false)
}

// leaderOf is the update that tells of the leader.
func leaderOf(name, path string, l recipe.Leader) view.Leader {
	return view.Leader{Name: name, Path: path, ID: string(l.Data), Term: l.Stat.Czxid}
}
