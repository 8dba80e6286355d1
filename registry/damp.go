package registry

import (
	"math"
	"slices"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Flap damping, as routers do it: every change of a member costs it a penalty
// that decays by half in a half-life. Above the upper limit the member is kept
// as it was last seen up, until it has been quiet for long enough that the
// penalty is below the lower limit, or the longest time is over.
const (
	penaltyPresence = 1000 // joins, leaves, changes of status
	penaltyData     = 200  // other changes of its data
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
	good    *view.Member // last seen up (while suppressed: what is shown)
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
		switch {
		case was == nil:
			d.add(now, penaltyPresence, is)
		case is == nil:
			d.add(now, penaltyPresence, was)
		case was.Status != is.Status:
			d.add(now, penaltyPresence, pickUp(is, was))
		case !sameData(was, is):
			d.add(now, penaltyData, is)
		}
	})
}

// sameData compares what a reader can see; being registered anew under
// another name is no change of the member.
func sameData(a, b *view.Member) bool {
	if a == b {
		return true
	}
	c := *a
	c.Node, c.Czxid, c.Name, c.ID = b.Node, b.Czxid, b.Name, b.ID
	return c.Equal(*b)
}

func pickUp(a, b *view.Member) *view.Member {
	if a.Status == view.StatusUp {
		return a
	}
	return b
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
	if f.since.IsZero() && (f.good == nil || seen.Status == view.StatusUp || f.good.Status != view.StatusUp) {
		f.good = seen
	}
	if f.since.IsZero() && f.penalty > penaltySuppress {
		f.since = now
	}
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

// show replaces suppressed members by what they were, and forgets flaps that
// are over.
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
		kept = append(kept, f.good)
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
			nodes = append(nodes, f.good.Node)
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
