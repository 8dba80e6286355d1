package registry

import (
	"cmp"
	"maps"
	"math"
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
	// newFor is how long a new member can replace one that leaves, and how long a member
	// that has left is remembered.
	newFor = 10 * time.Minute
)

// Damping, as routers do it. Each absence of a member adds a penalty when the member is
// back. The penalty decays by half in each half-life. When it exceeds the upper limit,
// the member is flapping. That ends when the penalty falls below the lower limit or the
// longest time is over.
const (
	penaltyAbsence  = 2000
	penaltyOrdered  = 200 // for an absence that the member announced
	penaltySuppress = 2500
	penaltyReuse    = 1000
	penaltyCeiling  = 4000 // upper bound, so that two minutes of quiet are always enough
	penaltyForget   = 100
	halfLife        = time.Minute
	maxSuppress     = 10 * time.Minute
)

// GuardConfig sets the losses of members that the guard does not believe. The zero value
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
	c.MaxLoss = cmp.Or(max(c.MaxLoss, 0), DefaultMaxLoss)
	c.MinMembers = cmp.Or(max(c.MinMembers, 0), DefaultMinMembers)
	c.Window = cmp.Or(max(c.Window, 0), DefaultWindow)
	c.Hold = cmp.Or(c.Hold, DefaultHold)
	return c
}

// rule decides which members of a group may serve, from the record of each over time. It
// is the only place that does. docs/concepts.md has it as a table.
//
//  1. A member whose registration says down, draining or maintenance does not serve.
//  2. The guard keeps members that vanish together, because they are rarely all dead.
//     Its base is the largest set within the window. When at least MaxLoss and at least
//     MinMembers of the base are lost, all that are lost are held. The hold ends when
//     the loss is below MaxLoss again, an operator accepts it, or the time is over. What is
//     let go because the loss is small again counts until its window is over. Those that
//     vanish together during a hold are held as long as if it began with them. Two
//     kinds of departure are no loss: a member that announced it, and one that a new
//     member has replaced. A new member that is up replaces one, once.
//  3. Damping takes out a member that comes and goes. What the guard holds is never
//     charged, nor what it would hold if the members of one window were away at the same
//     time, nor a change of weight or data. Losses and damped members together stay below MaxLoss of the base, and at
//     least MinMembers serve. The member that began to flap first goes first.
//
// It is a pure step function over (time, set). Only its owner touches it.
type rule struct {
	cfg       GuardConfig // with defaults
	noDamping bool

	started bool // the first set has been seen
	now     members
	records map[memberKey]*memberRecord // of those that are not just there
	history []sighting                  // oldest first, each smaller than the one before it
	base    members                     // while holding
	since   time.Time                   // since when the guard holds; zero: it does not
	damped  members                     // taken out now, as they are shown
}

type memberRecord struct {
	member     *view.Member  // as it was registered last
	joined     time.Time     // when it came as a new member; zero: it can replace no other one
	out        time.Time     // since when it is gone or down; zero: it is up
	gone       bool          // it is not registered
	blink      time.Time     // when its znode was found to be another one: it was away unseen
	replaced   *memberRecord // the one that it has replaced, at replacedAt
	replacedAt time.Time
	// What is known of its absence.
	announced bool // it said so before
	young     bool // it came as a new member and had replaced no other one
	believed  bool // its loss counts no more: it was announced, or replaced, or confirmed
	excused   bool // it is not charged: the guard has held the member, or it was never up

	penalty float64
	at      time.Time    // when penalty was computed
	absent  []absence    // those of this window that were not announced
	since   time.Time    // flapping since; zero: it is not
	shown   *view.Member // while flapping: the member as it was then, marked
}

// absence is one that is over.
type absence struct {
	began   time.Time
	charged bool
}

// sighting is a set that was there until some time ago.
type sighting struct {
	set   members
	until time.Time
}

// step takes the registered members and returns the members to use, and when to call it
// again even if nothing changes (zero: never).
func (r *rule) step(now time.Time, actual members) (members, time.Time) {
	if r.records == nil {
		r.records = map[memberKey]*memberRecord{}
	}
	left := r.follow(now, actual)
	if r.burst(now) {
		r.excuse(now, burstAbsences)
	}
	held, next := r.guard(now, actual, left)
	damped, again := r.damp(now, actual, held)
	r.forget(now)
	return actual.with(held).with(damped), earliest(next, again)
}

// resume continues from the set of an earlier follower and its hold, as if the members had
// been there until now. What is to come by its clock, which was wrong, is now.
func (r *rule) resume(now time.Time, before *view.Group) {
	if r.cfg.Off {
		return
	}
	if r.started = true; !before.Holding.IsZero() {
		r.since = earliest(before.Holding, now)
	}
	lost := map[string]time.Time{} // since when, by address and id
	for _, s := range before.Out {
		lost[s.Address+" "+s.ID] = s.Since
	}
	r.records = map[memberKey]*memberRecord{}
	for _, m := range before.Members {
		if m.Held {
			out := earliest(cmp.Or(lost[m.Address()+" "+m.ID], r.since), now)
			r.records[keyOf(&m)] = &memberRecord{member: &m, at: out, out: out, gone: true, excused: true}
			m.Held = false
		}
		if r.now = append(r.now, &m); m.MayServe() && !r.since.IsZero() {
			r.base = append(r.base, &m)
		}
	}
	r.now, _ = dedupe(r.now)
	r.base, _ = dedupe(r.base)
}

// follow takes in what changed since the last step, and returns the records of members
// that have left.
func (r *rule) follow(now time.Time, actual members) []*memberRecord {
	var left []*memberRecord
	r.now.changes(actual, func(was, is *view.Member) {
		k := keyOf(cmp.Or(is, was))
		rec := r.records[k]
		if rec == nil {
			isNew := was == nil && r.started && !r.knows(is)
			if was == nil && is.MayServe() && !isNew {
				return
			}
			rec = &memberRecord{at: now}
			r.records[k] = rec
			switch {
			case isNew:
				rec.joined = now
			case was != nil && !was.MayServe():
				rec.turn(now, was)
			}
			rec.excused = was == nil || !was.MayServe()
		}
		if was != nil && is != nil && was.Czxid != is.Czxid {
			rec.blink = now
		}
		rec.member, rec.gone = cmp.Or(is, was), is == nil
		if rec.gone {
			rec.young, rec.joined = !rec.joined.IsZero() && now.Sub(rec.joined) <= newFor, time.Time{}
			left = append(left, rec)
		}
		if is == nil || !is.MayServe() {
			if rec.replaced != nil && now.Sub(rec.replacedAt) <= r.cfg.Window {
				rec.replaced.believed = rec.replaced.announced // It replaces none when it goes as well.
			}
			rec.replaced = nil
		}
		rec.turn(now, is)
	})
	r.started = true
	return left
}

// turn takes in that the member is registered in another way, or no longer (nil).
func (rec *memberRecord) turn(now time.Time, is *view.Member) {
	if is != nil && is.MayServe() {
		switch {
		case rec.out.IsZero():
		case !rec.excused:
			rec.charge(now)
		case !rec.announced:
			rec.absent = append(rec.absent, absence{began: rec.out})
		}
		rec.out, rec.announced, rec.believed, rec.excused = time.Time{}, false, false, false
		return
	}
	if rec.out.IsZero() {
		rec.out = now
	}
	if is != nil {
		rec.announced = rec.announced || is.Status != view.StatusDown
		rec.believed = true // it said that it does not serve
	}
}

// charge adds the penalty for the absence that ends.
func (rec *memberRecord) charge(now time.Time) {
	rec.decay(now)
	if rec.announced {
		rec.penalty = min(rec.penalty+penaltyOrdered, penaltyCeiling)
	} else {
		rec.penalty = min(rec.penalty+penaltyAbsence, penaltyCeiling)
		rec.absent = append(rec.absent, absence{rec.out, true})
	}
	if rec.since.IsZero() && rec.penalty > penaltySuppress {
		rec.since = now
		c := *rec.member
		c.Status, c.Flapping = view.StatusDown, true
		rec.shown = &c
	}
}

// recent is how often the member was absent within the window, as far as it was not
// announced.
func (r *rule) recent(rec *memberRecord, now time.Time) int {
	start := now.Add(-r.cfg.Window)
	rec.absent = slices.DeleteFunc(rec.absent, func(a absence) bool { return a.began.Before(start) })
	n := len(rec.absent)
	if rec.gone && !rec.announced && !rec.out.Before(start) {
		n++
	}
	return n
}

// burstAbsences is how often a member may be absent within a window and still be part of a
// burst: more is its own fault.
const burstAbsences = 3

// burst reports whether so many members have left within the window that the guard would
// have held them, if they had been away at the same time.
//
// It counts those, too, whose absence was so short that only their new znodes show it.
func (r *rule) burst(now time.Time) bool {
	n := 0
	for _, rec := range r.records {
		k := r.recent(rec, now)
		if k > 0 && k <= burstAbsences || k == 0 && now.Sub(rec.blink) <= r.cfg.Window {
			n++
		}
	}
	return n >= r.cfg.MinMembers && float64(n) >= r.cfg.MaxLoss*float64(len(r.largest()))
}

// excuse takes back what was charged for absences within the window, from members that
// have been absent at most so often.
func (r *rule) excuse(now time.Time, most int) {
	for _, rec := range r.records {
		n := r.recent(rec, now)
		if n == 0 || n > most {
			continue
		}
		rec.decay(now)
		for i := range rec.absent {
			if rec.absent[i].charged {
				rec.absent[i].charged = false
				rec.penalty = max(rec.penalty-penaltyAbsence, 0)
			}
		}
		rec.excused = rec.excused || rec.gone
		if rec.penalty <= penaltySuppress {
			rec.since, rec.shown = time.Time{}, nil
		}
	}
}

func (rec *memberRecord) decay(now time.Time) {
	rec.penalty *= math.Exp2(-float64(now.Sub(rec.at)) / float64(halfLife))
	rec.at = now
}

// until returns when the flapping ends if the member stays as it is.
func (rec *memberRecord) until() time.Time {
	quiet := rec.at.Add(time.Duration(math.Log2(rec.penalty/penaltyReuse) * float64(halfLife)))
	if end := rec.since.Add(maxSuppress); end.Before(quiet) {
		return end
	}
	return quiet
}

// knows reports whether the member existed before, within the window.
func (r *rule) knows(m *view.Member) bool {
	return r.base.has(m) || slices.ContainsFunc(r.history, func(s sighting) bool { return s.set.has(m) })
}

// guard returns the members that are held, and when the hold ends.
func (r *rule) guard(now time.Time, actual members, left []*memberRecord) (members, time.Time) {
	r.remember(now, actual)
	if r.since.IsZero() {
		r.base = r.largest()
	} else {
		all := r.now
		for _, s := range r.history {
			all = all.with(s.set)
		}
		if n := len(r.lost(all, actual)); n >= r.cfg.MinMembers && r.tooMany(n, all) {
			r.base = r.base.with(all) // those that have come during the hold vanish as well
		}
	}
	r.replace(now, left)
	over := r.expire(now)
	lost := r.lost(r.base, actual)
	holding := !r.since.IsZero()
	if r.cfg.Off || !r.tooMany(len(lost), r.base) || (!holding || over) && len(lost) < r.cfg.MinMembers {
		if holding {
			// Those that are let go count until the window is over, as if they had been there
			// until now: they were in use.
			r.history = []sighting{{r.base.with(r.now), now}}
			r.base, r.since = nil, time.Time{}
		}
		return nil, time.Time{}
	}
	switch {
	case !holding:
		r.since = now
		r.excuse(now, math.MaxInt)
	case over: // The rest was lost later.
		r.since = now
		for _, m := range lost {
			r.since = earliest(r.since, r.records[keyOf(m)].out)
		}
	}
	var next time.Time
	for i, m := range lost {
		rec := r.records[keyOf(m)]
		rec.excused = true
		next = earliest(next, r.heldUntil(rec))
		held := *rec.member // The base may have it as it was earlier in the window.
		held.Held = true
		lost[i] = &held
	}
	return lost, next
}

// heldUntil returns until when a lost member is held; zero: until somebody accepts its loss.
func (r *rule) heldUntil(rec *memberRecord) time.Time {
	switch {
	case r.cfg.Hold <= 0:
		return time.Time{}
	case rec.out.After(r.since):
		return rec.out.Add(r.cfg.Hold)
	}
	return r.since.Add(r.cfg.Hold)
}

// expire believes the loss of the members that have been held long enough, and reports
// whether there were any.
func (r *rule) expire(now time.Time) bool {
	if r.since.IsZero() || r.cfg.Hold <= 0 {
		return false
	}
	over := slices.DeleteFunc(r.lost(r.base, r.now), func(m *view.Member) bool {
		return r.heldUntil(r.records[keyOf(m)]).After(now)
	})
	r.confirm(over)
	return len(over) > 0
}

// replace lets new members replace the members that have left: each one, once, the latest
// first. Where they do not replace enough of them, they replace none. Nobody replaces a
// member that is new itself, unless it said that it goes.
func (r *rule) replace(now time.Time, left []*memberRecord) {
	var newcomers []*memberRecord
	for _, rec := range r.records {
		if !rec.joined.IsZero() && now.Sub(rec.joined) <= newFor && rec.out.IsZero() {
			newcomers = append(newcomers, rec)
		}
	}
	if len(newcomers) == 0 {
		return
	}
	slices.SortFunc(newcomers, func(a, b *memberRecord) int { return b.joined.Compare(a.joined) })
	takePlace := func(newcomer, rec *memberRecord) {
		rec.believed = true
		newcomer.joined, newcomer.replaced, newcomer.replacedAt = time.Time{}, rec, now
	}
	// Who came after a loss that the base does not show has made up for it there.
	for _, rec := range r.records {
		if !rec.gone || rec.believed || rec.young || now.Sub(rec.out) > r.cfg.Window || r.base.has(rec.member) {
			continue
		}
		i := slices.IndexFunc(newcomers, func(n *memberRecord) bool { return !n.joined.Before(rec.out) && r.base.has(n.member) })
		if i >= 0 {
			takePlace(newcomers[i], rec)
			newcomers = slices.Delete(newcomers, i, i+1)
		}
	}
	var departed []*memberRecord
	lost := r.lost(r.base, r.now)
	for _, m := range lost {
		if rec := r.records[keyOf(m)]; !rec.young {
			departed = append(departed, rec)
		}
	}
	open := len(lost) - min(len(departed), len(newcomers))
	if r.tooMany(open, r.base) && len(lost) >= r.cfg.MinMembers {
		return
	}
	for _, rec := range left {
		if rec.believed {
			departed = append(departed, rec)
		}
	}
	for i, rec := range departed[:min(len(departed), len(newcomers))] {
		takePlace(newcomers[i], rec)
	}
}

// lost returns the members of a set whose loss counts.
func (r *rule) lost(set, actual members) members {
	return slices.DeleteFunc(set.missing(actual), func(m *view.Member) bool {
		rec := r.records[keyOf(m)]
		return rec == nil || rec.believed
	})
}

// size is the size of a set without those whose loss does not count.
func (r *rule) size(set members) int {
	n := len(set)
	for _, rec := range r.records {
		if rec.believed && set.has(rec.member) {
			n--
		}
	}
	return n
}

// tooMany reports whether a loss is at least MaxLoss of a set.
func (r *rule) tooMany(lost int, set members) bool {
	return lost > 0 && float64(lost) >= r.cfg.MaxLoss*float64(r.size(set))
}

func (r *rule) accept() {
	r.confirm(r.base.missing(r.now))
	r.base, r.since, r.history = nil, time.Time{}, nil
}

// confirm believes the loss of these members of the base.
func (r *rule) confirm(lost members) {
	for _, m := range lost {
		if rec := r.records[keyOf(m)]; rec != nil {
			rec.believed = true
		}
	}
}

// remember adds the set to the history. The history keeps only sets that can still
// become the base. It drops a set that ended before the window, a set that is not
// larger than a newer one, and a set that ended only shortly after a larger one.
// The last rule bounds its length when members leave fast.
func (r *rule) remember(now time.Time, actual members) {
	n := r.size(r.now)
	if last := len(r.history) - 1; last < 0 || n >= r.size(r.history[last].set) ||
		now.Sub(r.history[last].until) >= r.cfg.Window/sightings {
		for ; last >= 0 && r.size(r.history[last].set) <= n; last-- {
			r.history[last] = sighting{}
		}
		r.history = append(r.history[:last+1], sighting{r.now, now})
	}
	r.now = actual
	start := now.Add(-r.cfg.Window)
	r.history = slices.DeleteFunc(r.history, func(s sighting) bool { return s.until.Before(start) })
}

// largest returns the largest set of the window, the latest of equals. Members whose loss
// does not count do not count here either: those that have left for good must not hide
// those that have come since.
func (r *rule) largest() members {
	set, most := r.now, r.size(r.now)
	for _, s := range slices.Backward(r.history) {
		if len(s.set) <= most {
			continue
		}
		if n := r.size(s.set); n > most {
			set, most = s.set, n
		}
	}
	return set
}

// damp returns the members that are taken out, as they are shown, and when that changes.
// Of those that are registered it takes no more than the guard would let go, and none
// while the guard holds.
func (r *rule) damp(now time.Time, actual, held members) (members, time.Time) {
	if r.noDamping {
		return nil, time.Time{}
	}
	var flapping []*memberRecord
	for _, rec := range r.records {
		if !rec.since.IsZero() && !rec.until().After(now) {
			rec.penalty, rec.at, rec.since, rec.shown = 0, now, time.Time{}, nil
		}
		if !rec.since.IsZero() {
			flapping = append(flapping, rec)
		}
	}
	slices.SortFunc(flapping, func(a, b *memberRecord) int {
		return cmp.Or(a.since.Compare(b.since), compareKeys(a.member, b.member))
	})
	r.damped = nil
	var next time.Time
	room := 0
	if len(flapping) > 0 {
		room = r.room(actual)
	}
	for _, rec := range flapping {
		if rec.out.IsZero() || held.has(rec.member) {
			if room--; room < 0 {
				continue
			}
		}
		r.damped = append(r.damped, rec.shown)
		next = earliest(next, rec.until())
	}
	slices.SortFunc(r.damped, compareKeys)
	return r.damped, next
}

// room is how many members that are up damping may take out.
func (r *rule) room(actual members) int {
	if !r.since.IsZero() {
		return 0
	}
	up := 0
	for _, m := range actual {
		if m.MayServe() {
			up++
		}
	}
	share := int(math.Ceil(r.cfg.MaxLoss*float64(r.size(r.base)))) - 1
	return min(share-len(r.lost(r.base, actual)), up-r.cfg.MinMembers)
}

// forget drops the records that say nothing any more.
func (r *rule) forget(now time.Time) {
	maps.DeleteFunc(r.records, func(_ memberKey, rec *memberRecord) bool {
		rec.decay(now)
		if now.Sub(rec.joined) > newFor {
			rec.joined = time.Time{}
		}
		quiet := rec.since.IsZero() && now.Sub(rec.replacedAt) > r.cfg.Window && r.recent(rec, now) == 0 && rec.penalty < penaltyForget && rec.joined.IsZero() && now.Sub(rec.blink) > r.cfg.Window
		return quiet && (rec.out.IsZero() || rec.gone && now.Sub(rec.out) > newFor && !r.knows(rec.member))
	})
}

// earliest returns the earlier of two times; zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
