package registry

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Flap damping, as routers do it: every change of a member costs it a penalty
// that decays by half in a half-life. Above the upper limit the member is marked
// flapping and down, until it has been quiet for long enough that the penalty is
// below the lower limit, or the longest time is over.
const (
	penaltyPresence = 1000 // it may get traffic, or no longer: a restart is two of them
	penaltyData     = 200  // other changes
	penaltyOrdered  = 100  // somebody took it out, or brought it back
	penaltySuppress = 2500
	penaltyReuse    = 1000
	penaltyCeiling  = 4000 // so that two minutes of quiet are always enough
	halfLife        = time.Minute
	maxSuppress     = 10 * time.Minute
)

// damper is a pure step function over (time, set); only its owner touches it.
type damper struct {
	off   bool
	last  members // as it was given at the last step
	flaps map[memberKey]*flap
	first bool // the first set has been seen: joins of the first one cost nothing
}

type flap struct {
	penalty float64
	at      time.Time    // when penalty was computed
	since   time.Time    // suppressed since; zero: it is not
	left    bool         // it is gone, and it said so before
	shown   *view.Member // while suppressed: the member as it was then, marked
}

// step takes the members as they are and returns those to be shown, and when
// to call it again though nothing changed (zero: never).
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
		case was == nil && d.flaps[keyOf(is)] == nil: // a first appearance is no flap
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

// ordered reports whether somebody took the member out on purpose, or brought it
// back after that. This is no sign of an ill member. If it counted as one, an
// outage after a rolling restart would mark every member as flapping and down,
// and the guard could hold none.
func (d *damper) ordered(was, is *view.Member) bool {
	said := func(m *view.Member) bool {
		return m.Status == view.StatusDraining || m.Status == view.StatusMaintenance
	}
	if was == nil {
		return d.flaps[keyOf(is)].left
	}
	return said(was) || is != nil && said(is)
}

// sameData compares what a reader can see; being registered anew under
// another name is no change of the member.
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

// flapping marks a member: nobody should send it traffic.
func flapping(m *view.Member) *view.Member {
	c := *m
	c.Status, c.Flapping = view.StatusDown, true
	return &c
}

func (f *flap) decay(now time.Time) {
	f.penalty *= math.Exp2(-float64(now.Sub(f.at)) / float64(halfLife))
	f.at = now
}

// until is when the flap ends, should the member be quiet from now on.
func (f *flap) until() time.Time {
	quiet := f.at.Add(time.Duration(math.Log2(f.penalty/penaltyReuse) * float64(halfLife)))
	if end := f.since.Add(maxSuppress); end.Before(quiet) {
		return end
	}
	return quiet
}

// show marks the suppressed members, whether or not they are registered right
// now, and forgets flaps that are over.
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

// earliest returns the earlier of two times of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
