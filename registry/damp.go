package registry

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Flap damping, as routers do it. Every change of a member adds a penalty, which
// decays by half in each half-life. When the penalty exceeds the upper limit, the
// member is marked flapping and down. The mark ends when the penalty falls below
// the lower limit or the longest time is over.
const (
	penaltyPresence = 1000 // the member may get traffic now, or no longer; a restart costs two
	penaltyData     = 200  // other changes
	penaltyOrdered  = 100  // an operator took it out, or brought it back
	penaltySuppress = 2500
	penaltyReuse    = 1000
	penaltyCeiling  = 4000 // upper bound, so that two minutes of quiet are always enough
	halfLife        = time.Minute
	maxSuppress     = 10 * time.Minute
)

// damper is a pure step function over (time, set). Only its owner touches it.
type damper struct {
	off   bool
	last  members // input of the last step
	flaps map[memberKey]*flap
	first bool // the first set has been seen; its joins cost nothing
}

type flap struct {
	penalty float64
	at      time.Time    // when penalty was computed
	since   time.Time    // suppressed since; zero: it is not
	left    bool         // it left, and announced it before
	shown   *view.Member // while suppressed: the member as it was then, marked
}

// step takes the actual members and returns the members to show, and when to call
// it again even if nothing changes (zero: never).
func (d *damper) step(now time.Time, actual members) (members, time.Time) {
	if d.off {
		return actual, time.Time{}
	}
	if d.flaps == nil {
		d.flaps = make(map[memberKey]*flap)
	}
	if d.first {
		d.charge(now, actual)
	}
	d.first, d.last = true, actual
	return d.show(now, actual)
}

// charge adds penalties for what changed since the last step.
func (d *damper) charge(now time.Time, actual members) {
	d.last.changes(actual, func(was, is *view.Member) {
		serves := func(m *view.Member) bool { return m != nil && m.MayServe() }
		switch seen := cmp.Or(is, was); {
		case was == nil && d.flaps[keyOf(is)] == nil: // a first appearance is not a flap
		case d.ordered(was, is):
			d.add(now, penaltyOrdered, seen)
		case serves(was) != serves(is):
			d.add(now, penaltyPresence, seen)
		case was == nil || is == nil || !sameData(was, is):
			d.add(now, penaltyData, seen)
		}
		if f := d.flaps[keyOf(cmp.Or(is, was))]; f != nil {
			f.left = is == nil && d.ordered(was, nil)
		}
	})
}

// ordered reports whether an operator took the member out or brought it back. Such
// a change does not mean that the member is unstable. If it counted fully, an
// outage after a rolling restart would mark every member as flapping and down, and
// the guard could hold no member.
func (d *damper) ordered(was, is *view.Member) bool {
	said := func(m *view.Member) bool {
		return m.Status == view.StatusDraining || m.Status == view.StatusMaintenance
	}
	if was == nil {
		return d.flaps[keyOf(is)].left
	}
	return said(was) || is != nil && said(is)
}

// sameData compares the fields that a reader can see. A new registration under
// another znode name does not count as a change.
func sameData(a, b *view.Member) bool {
	if a == b {
		return true
	}
	c := *a
	c.Znode, c.Czxid, c.Name, c.ID = b.Znode, b.Czxid, b.Name, b.ID
	return c.Equal(*b)
}

func (d *damper) add(now time.Time, penalty float64, seen *view.Member) {
	k := keyOf(seen)
	f := d.flaps[k]
	if f == nil {
		f = &flap{at: now}
		d.flaps[k] = f
	}
	f.decay(now)
	f.penalty = min(f.penalty+penalty, penaltyCeiling)
	if f.since.IsZero() && f.penalty > penaltySuppress {
		f.since, f.shown = now, flapping(seen)
	}
}

// flapping returns the member marked as flapping and down, so that it gets no
// traffic.
func flapping(m *view.Member) *view.Member {
	c := *m
	c.Status, c.Flapping = view.StatusDown, true
	return &c
}

func (f *flap) decay(now time.Time) {
	f.penalty *= math.Exp2(-float64(now.Sub(f.at)) / float64(halfLife))
	f.at = now
}

// until returns when the flap ends if the member stays quiet from now on.
func (f *flap) until() time.Time {
	quiet := f.at.Add(time.Duration(math.Log2(f.penalty/penaltyReuse) * float64(halfLife)))
	if end := f.since.Add(maxSuppress); end.Before(quiet) {
		return end
	}
	return quiet
}

// show marks the suppressed members, even those that are not registered right now.
// It forgets flaps that are over.
func (d *damper) show(now time.Time, actual members) (members, time.Time) {
	var next time.Time
	var kept members
	for k, f := range d.flaps {
		if f.since.IsZero() {
			if f.decay(now); f.penalty < 100 {
				delete(d.flaps, k)
			}
			continue
		}
		end := f.until()
		if !end.After(now) {
			delete(d.flaps, k)
			continue
		}
		kept = append(kept, f.shown)
		next = earliest(next, end)
	}
	slices.SortFunc(kept, compareKeys)
	return actual.with(kept), next
}

// flapping returns the nodes of suppressed members.
func (d *damper) flapping() []string {
	var nodes []string
	for _, f := range d.flaps {
		if !f.since.IsZero() {
			nodes = append(nodes, f.shown.Znode)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// earliest returns the earlier of two times; zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
