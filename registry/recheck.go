package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Periodic checks without an event, because an event is only a hint; see
// session.RecheckAfter. Each time the reader gets the Stat of the group and of a
// few members in turn, and reads again what has changed. It finds a lost list event
// at the next check, and a lost event of a member when its turn comes.

// recheckFew is the number of members in one check.
const recheckFew = 2

// recheck is the state of the periodic checks.
type recheck struct {
	at   time.Time
	left []string // names that have yet to get their turn
}

// plan sets the time of the next check.
func (r *recheck) plan() { r.at = time.Now().Add(session.RecheckAfter()) }

// turn returns the next name, "" if there is none.
func (r *recheck) turn(nodes map[string]*child) string {
	if len(r.left) == 0 {
		r.left = slices.Collect(maps.Keys(nodes))
	}
	if len(r.left) == 0 {
		return ""
	}
	name := r.left[0]
	r.left = r.left[1:]
	return name
}

// look runs a check when it is due, and marks what has changed for reading. A
// failed request is repeated at the next check.
func (r *reader) look(ctx context.Context) {
	if time.Now().Before(r.again.at) {
		return
	}
	r.again.plan()
	if r.list != nil && !unchanged(ctx, r.s, r.g.cfg.Path, r.pzxid) {
		r.list.Stop()
		r.list = nil
	}
	for range min(recheckFew, len(r.nodes)) {
		name := r.again.turn(r.nodes)
		c := r.nodes[name]
		if c == nil || c.watch == nil {
			continue
		}
		st, there, err := r.s.Exists(ctx, session.JoinPath(r.g.cfg.Path, name))
		if err == nil && there && st.Mzxid != c.mzxid {
			r.dirty[name] = true
		}
	}
}

// unchanged reports whether the pzxid of a znode is still the same; 0: it did not
// exist. If the request fails, it returns true.
func unchanged(ctx context.Context, s *session.Session, path string, pzxid int64) bool {
	st, there, err := s.Exists(ctx, path)
	return err != nil || there && st.Pzxid == pzxid || !there && pzxid == 0
}
