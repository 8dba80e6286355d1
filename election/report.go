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
		c.cfg.Metrics.Leads(c.cfg.Name, now.Mine)
		if up != nil {
			up(last)
		}
	}
	c.cfg.Metrics.Leads(c.cfg.Name, false)
}

// maxRawID bounds what is kept of an id that is no name.
const maxRawID = 256

// leaderOf returns the update for the leader. Whoever can write the election chooses
// the data of the znode, so only a name becomes the id. A leader without an id has none.
func leaderOf(name, path string, l recipe.Leader) view.Leader {
	u := view.Leader{Name: name, Path: path, ID: string(l.Data), Term: l.Stat.Czxid}
	if u.ID != "" && !view.IsName(u.ID) {
		u.RawID, u.Znode, u.ID = u.ID[:min(len(u.ID), maxRawID)], l.Path, ""
	}
	return u
}
