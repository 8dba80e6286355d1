package election

import (
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

// state is one thing that Run has learned.
type state struct {
	mine *view.Leader // what our own candidacy knows: whether we lead
	seen *view.Leader // the first in line
}

// report turns states into updates: our own term counts first, then the observed leader.
// It sends an update only if it differs from the one before. It returns when states is
// closed.
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
		// Send no update while the leader is unknown.
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

// leaderOf returns the update for the leader.
func leaderOf(name, path string, l recipe.Leader) view.Leader {
	return view.Leader{Name: name, Path: path, ID: string(l.Data), Term: l.Stat.Czxid}
}
