package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Defaults of the guard.
const (
	DefaultMaxLoss    = 0.3
	DefaultMinMembers = 3
	DefaultWindow     = 30 * time.Second
	DefaultHold       = 10 * time.Minute

	sightings = 16 // at most so many sets are remembered in a window
	// newFor is how long a new member can replace one that leaves.
	newFor = 10 * time.Minute
)

// GuardConfig says which loss of members the guard does not believe. The zero value
// has the defaults.
type GuardConfig struct {
	Off        bool          // every loss is believed at once
	MaxLoss    float64       // share of the group, 0..1; 0: 0.3
	MinMembers int           // 0: 3
	Window     time.Duration // 0: 30 s
	Hold       time.Duration // after this time the loss is believed; 0: 10 min, negative: only Accept ends the hold
	// Probe connects to the held members every 2 s. A member that fails three times
	// in a row counts as lost.
	Probe bool
}

func (c GuardConfig) withDefaults() GuardConfig {
	if c.MaxLoss <= 0 {
		c.MaxLoss = DefaultMaxLoss
	}
	if c.MinMembers <= 0 {
		c.MinMembers = DefaultMinMembers
	}
	if c.Window <= 0 {
		c.Window = DefaultWindow
	}
	if c.Hold == 0 {
		c.Hold = DefaultHold
	}
	return c
}

// guard keeps the members of a group when many of them vanish within a short time,
// because they are rarely all dead. Its base is the largest set within the window.
// It believes a small loss at once. When at least MaxLoss and at least MinMembers
// of the base are gone, it uses the base again and marks the missing members as
// held. The hold ends when enough members are back, an operator accepts the loss,
// or the time is over.
//
// Two kinds of departure do not count as a loss: a member that announced it (its
// status was not up), and members that at least as many new ones have replaced (a
// blue/green switch).
//
// It is a pure step function over (time, set). Only its owner touches it.
type guard struct {
	cfg      GuardConfig
	started  bool // the first set has been seen
	now      members
	fresh    map[memberKey]time.Time // current members that joined as new ones, and when
	reported map[memberKey]bool      // members that left after they had announced it
	history  []sighting              // oldest first, each smaller than the one before it
	base     members                 // while holding
	since    time.Time               // since when it is holding; zero: it is not
}

// sighting is a set that was there until some time ago.
type sighting struct {
	set   members
	until time.Time
}

// step takes the actual members and returns the members to use, and when to call it
// again even if nothing changes (zero: never).
func (g *guard) step(now time.Time, actual members) (members, time.Time) {
	if g.cfg.Off {
		return actual, time.Time{}
	}
	g.follow(now, actual)
	if g.since.IsZero() {
		g.remember(now, actual)
		g.base = g.largest()
		if gone := g.gone(now, actual); !g.tooMany(gone) || len(gone) < g.cfg.MinMembers {
			g.base = nil
			return actual, time.Time{}
		}
		g.since = now
	}
	g.now = actual
	gone := g.gone(now, actual)
	if !g.tooMany(gone) || g.cfg.Hold > 0 && now.Sub(g.since) >= g.cfg.Hold {
		g.accept(now, actual)
		return actual, time.Time{}
	}
	var next time.Time
	if g.cfg.Hold > 0 {
		next = g.since.Add(g.cfg.Hold)
	}
	return actual.with(markGone(gone)), next
}

// follow notes new members, and members that announced their departure and left.
func (g *guard) follow(now time.Time, actual members) {
	if g.fresh == nil {
		g.fresh, g.reported = map[memberKey]time.Time{}, map[memberKey]bool{}
	}
	g.now.changes(actual, func(was, is *view.Member) {
		switch {
		case was == nil:
			delete(g.reported, keyOf(is))
			if g.started && !g.knows(is) {
				g.fresh[keyOf(is)] = now
			}
		case is == nil:
			delete(g.fresh, keyOf(was))
			if !was.MayServe() {
				g.reported[keyOf(was)] = true
			}
		}
	})
	g.started = true
}

// knows reports whether the member existed before, within the window.
func (g *guard) knows(m *view.Member) bool {
	return g.base.has(m) || slices.ContainsFunc(g.history, func(s sighting) bool { return s.set.has(m) })
}

// gone returns the members of the base that are lost.
func (g *guard) gone(now time.Time, actual members) members {
	maps.DeleteFunc(g.fresh, func(_ memberKey, at time.Time) bool { return now.Sub(at) > newFor })
	if len(g.reported) > 0 {
		maps.DeleteFunc(g.reported, func(k memberKey, _ bool) bool {
			return !g.knows(&view.Member{Host: k.host, Port: k.port, Name: k.name})
		})
		g.base = slices.DeleteFunc(slices.Clone(g.base), func(m *view.Member) bool { return g.reported[keyOf(m)] })
	}
	lost := g.base.missing(actual)
	if len(g.fresh) >= len(lost) {
		return nil // new members replace them
	}
	return lost
}

// accept believes the current set.
func (g *guard) accept(_ time.Time, actual members) {
	g.base, g.since = nil, time.Time{}
	g.now, g.history = actual, nil
	clear(g.reported)
}

// forget believes the loss of these members of the base.
func (g *guard) forget(lost members) {
	if len(lost) > 0 {
		g.base = g.base.without(lost)
	}
}

// remember adds the set to the history. The history keeps only sets that can still
// become the base. It drops a set that ended before the window, a set that is not
// larger than a newer one, and a set that ended only shortly after a larger one.
// The last rule bounds its length when members leave fast.
func (g *guard) remember(now time.Time, actual members) {
	if last := len(g.history) - 1; last < 0 || len(g.now) > len(g.history[last].set) ||
		now.Sub(g.history[last].until) >= g.cfg.Window/sightings {
		for ; last >= 0 && len(g.history[last].set) <= len(g.now); last-- {
			g.history[last] = sighting{}
		}
		g.history = append(g.history[:last+1], sighting{g.now, now})
	}
	g.now = actual
	start := now.Add(-g.cfg.Window)
	drop := 0
	for drop < len(g.history) && g.history[drop].until.Before(start) {
		drop++
	}
	g.history = append(g.history[:0:0], g.history[drop:]...)
}

// largest returns the largest set of the window, the newest of equals.
func (g *guard) largest() members {
	if len(g.history) == 0 || len(g.now) >= len(g.history[0].set) {
		return g.now
	}
	return g.history[0].set
}

// tooMany reports whether the share of the base that is gone is at least MaxLoss.
func (g *guard) tooMany(gone members) bool {
	return len(gone) > 0 && float64(len(gone)) >= g.cfg.MaxLoss*float64(len(g.base))
}

// markGone marks members as gone.
func markGone(gone members) members {
	list := make(members, len(gone))
	for i, m := range gone {
		c := *m
		c.Held = true
		list[i] = &c
	}
	return list
}
