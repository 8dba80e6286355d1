package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// What is looked at without an event: an event is only a hint, see
// session.RecheckAfter. Each time the reader asks for the Stat of the group and of a
// few members, each in its turn, and reads what is not as it was read. A lost list is
// found at the next look, a lost change of a member when its turn has come.

// recheckFew is how many members are looked at each time.
const recheckFew = 2

// recheck is what is looked at without an event.
type recheck struct {
	at   time.Time
	left []string // names that have yet to get their turn
}

// plan sets the time of the next look.
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

// look looks when it is time, and marks what is to be read. What fails is tried the
// next time.
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

// unchanged reports whether the children of a znode are those of pzxid; 0: it did not
// exist. What cannot be told is taken as unchanged.
func unchanged(ctx context.Context, s *session.Session, path string, pzxid int64) bool {
	st, there, err := s.Exists(ctx, path)
	return err != nil || there && st.Pzxid == pzxid || !there && pzxid == 0
}
