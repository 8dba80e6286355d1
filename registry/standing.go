package registry

import (
	"slices"

	"github.com/zkagent/zkagent/view"
)

// standingsShown bounds the standings in the status of a group.
const standingsShown = 200

// out returns the standings of the members that do not just serve, by their keys.
func (r *rule) out() []view.Standing {
	var list []*memberRecord
	for _, rec := range r.records {
		if !rec.out.IsZero() || !rec.since.IsZero() {
			list = append(list, rec)
		}
	}
	slices.SortFunc(list, func(a, b *memberRecord) int { return compareKeys(a.member, b.member) })
	var out []view.Standing
	for _, rec := range list[:min(len(list), standingsShown)] {
		out = append(out, r.standing(rec))
	}
	return out
}

func (r *rule) standing(rec *memberRecord) view.Standing {
	m := rec.member
	s := view.Standing{ID: m.ID, Node: m.Node, Address: m.Address(), Since: rec.out}
	switch {
	case rec.gone && rec.excused && !rec.believed && !r.since.IsZero():
		s.State, s.Serves = view.StandingHeld, true
		if r.cfg.Hold > 0 {
			s.Until = r.since.Add(r.cfg.Hold)
		}
	case !rec.since.IsZero():
		s.State, s.Since, s.Until, s.Penalty, s.Limit = view.StandingSpared, rec.since, rec.until(), int(rec.penalty), penaltySuppress
		if s.Serves = rec.out.IsZero(); r.damped.has(m) {
			s.State, s.Serves = view.StandingFlapping, false
		}
	case rec.gone:
		s.State = view.StandingGone
	default:
		s.State = m.Status
	}
	return s
}
