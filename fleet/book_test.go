package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
)

// book is told of every transaction of the server in memory, in their order
// and before anybody can see it, and checks what must hold after each:
//
//   - a decision is made once and never changes, and one for commit has the
//     votes of all who were asked, but for those who may be skipped;
//   - ready names a rollout only with its decision for commit, and its version;
//   - a host starts only after that decision, while the rollout is neither
//     halted nor closed, nor has had its number of failures, and what a host
//     has finished stays so;
//   - the active are never more than K, and the started not more than the
//     canaries while only those may start;
//   - one rollout is open; one that is closed was decided, and one that is
//     closed as done has nobody active and no halt.
type book struct {
	t     *testing.T
	moved chan struct{} // has one value after a record of a rollout has changed

	mu       sync.Mutex // guards what follows
	current  string
	rollouts map[string]*chapter
}

// chapter is one rollout.
type chapter struct {
	proposal Proposal
	opened   time.Time
	votes    map[string]Vote
	decision *Decision
	control  Control
	activity Activity
	hosts    map[string]HostRecord
	halted   bool
	done     *Done
}

func newBook(t *testing.T) *book {
	return &book{t: t, moved: make(chan struct{}, 1), rollouts: map[string]*chapter{}}
}

// awaitMove waits until a rollout moves, not for long: who acts then is between
// what others look at and what they do.
func (b *book) awaitMove(ctx context.Context) {
	select {
	case <-b.moved: // of before
	default:
	}
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-b.moved:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// committed is for memzk.Options; nil: the znode is gone.
func (b *book) committed(path string, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path == readyPath(root) && data != nil {
		b.ready(data)
		return
	}
	rest, ok := strings.CutPrefix(path, rolloutsPath(root)+"/")
	if !ok {
		return
	}
	name, part, _ := strings.Cut(rest, "/")
	if path == currentPath(root) {
		b.open(string(data))
		return
	}
	if _, ok := rolloutNumber(name); !ok {
		return
	}
	if part == "" {
		b.proposed(name, data)
		return
	}
	if c := b.rollouts[name]; c != nil {
		b.changed(c, name, part, data)
		select {
		case b.moved <- struct{}{}:
		default:
		}
	}
}

func (b *book) ready(data []byte) {
	ready, _, err := config.ParseReady(data)
	if err != nil {
		b.t.Error(err)
		return
	}
	c := b.rollouts[ready.Rollout]
	if ready.Rollout != "" && (c == nil || c.decision == nil || !c.decision.Commit || c.proposal.Version != ready.Version) {
		b.t.Errorf("ready is %s without a decision for it: %+v", data, c)
	}
}

func (b *book) open(name string) {
	if b.current != "" && name != "" {
		b.t.Errorf("%s is opened while %s is open", name, b.current)
	}
	if c := b.rollouts[b.current]; name == "" && c != nil && c.done == nil {
		b.t.Errorf("%s is not open any more and not closed", b.current)
	}
	b.current = name
}

func (b *book) proposed(name string, data []byte) {
	if data == nil {
		delete(b.rollouts, name)
		return
	}
	c := &chapter{opened: time.Now(), votes: map[string]Vote{}, hosts: map[string]HostRecord{}}
	keep(b, name, data, &c.proposal)
	b.rollouts[name] = c
}

// changed notes one record of a rollout.
func (b *book) changed(c *chapter, name, part string, data []byte) {
	id, host := strings.CutPrefix(part, "hosts/")
	voter, vote := strings.CutPrefix(part, "votes/")
	switch {
	case host:
		b.host(c, name, id, data)
	case vote:
		var v Vote
		if data != nil {
			keep(b, name, data, &v)
		}
		c.votes[voter] = v
	case part == "halt":
		c.halted = data != nil
	case part == "done" && len(data) == 0: // gone, or only tried
		c.done = nil
	case part == "done":
		c.done = &Done{}
		keep(b, name, data, c.done)
		if c.decision == nil || c.done.Result == ResultDone && !c.decision.Commit {
			b.t.Errorf("%s is closed as %s, decision %+v", name, data, c.decision)
		}
		if c.done.Result == ResultDone && (c.halted || len(c.activity.Active) > 0) {
			b.t.Errorf("%s is closed as done, halted: %v, active: %v", name, c.halted, c.activity.Active)
		}
	case data == nil: // swept
	case part == "control":
		keep(b, name, data, &c.control)
	case part == "decision":
		if c.decision != nil {
			b.t.Errorf("%s: the decision was %+v and is %s", name, c.decision, data)
		}
		c.decision = &Decision{}
		keep(b, name, data, c.decision)
		b.decided(c, name)
	case part == "hosts":
		keep(b, name, data, &c.activity)
		b.counts(c, name)
	}
}

// decided checks that nobody was passed over, and nobody's time cut short.
func (b *book) decided(c *chapter, name string) {
	strategy := c.proposal.Strategy
	// Znodes know the time in milliseconds.
	late := time.Since(c.opened) > time.Duration(strategy.VoteTimeout)-10*time.Millisecond
	if !late && strings.HasPrefix(c.decision.Reason, "no vote within") {
		b.t.Errorf("%s: decided %+v after %s", name, c.decision, time.Since(c.opened))
	}
	for _, id := range c.proposal.Participants {
		v, voted := c.votes[id]
		skipped := slices.Contains(c.decision.Skipped, id) && (v.Skip || late && strategy.Absent == AbsentSkip)
		if c.decision.Commit && !skipped && (!voted || !v.Commit) {
			b.t.Errorf("%s: decided %+v, but the vote of %s is %+v", name, c.decision, id, v)
		}
	}
}

func (b *book) counts(c *chapter, name string) {
	switch a := c.activity; {
	case len(a.Active) > c.proposal.Strategy.Parallel:
		b.t.Errorf("%s: %v are active, K is %d", name, a.Active, c.proposal.Strategy.Parallel)
	case a.Budget >= 0 && a.Started > a.Budget:
		b.t.Errorf("%s: %d have started, %d may", name, a.Started, a.Budget)
	}
}

func (b *book) host(c *chapter, name, id string, data []byte) {
	before, known := c.hosts[id]
	if data == nil {
		if known && before.State == HostDone && c.done == nil {
			b.t.Errorf("%s: %s was done and is not recorded any more", name, id)
		}
		delete(c.hosts, id)
		return
	}
	var now HostRecord
	keep(b, name, data, &now)
	c.hosts[id] = now
	if known && before.State != HostStarted {
		b.t.Errorf("%s: %s was %+v and is %+v", name, id, before, now)
	}
	if now.State != HostStarted {
		return
	}
	if c.decision == nil || !c.decision.Commit || c.halted || c.done != nil {
		b.t.Errorf("%s: %s starts, decision %+v, halted: %v, done %+v", name, id, c.decision, c.halted, c.done)
	}
	if c.activity.Failed >= c.proposal.Strategy.MaxFailures {
		b.t.Errorf("%s: %s starts after %d failures of %d", name, id, c.activity.Failed, c.proposal.Strategy.MaxFailures)
	}
	if !slices.Contains(c.activity.Active, id) {
		b.t.Errorf("%s: %s starts, active are %v", name, id, c.activity.Active)
	}
}

// keep decodes a record.
func keep[T any](b *book, path string, data []byte, into *T) {
	record, err := decode[T](path, data)
	if err != nil {
		b.t.Error(err)
	}
	*into = record
}

// may checks that a host may be in the middle of using a version now, and
// returns how many may be so at once.
func (b *book) may(id, rollout string, version int64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.rollouts[rollout]
	if c == nil {
		b.t.Errorf("%s uses v%d of %s, which is unknown", id, version, rollout)
		return 0
	}
	if c.proposal.Version != version || c.decision == nil || !c.decision.Commit || c.hosts[id].State != HostStarted {
		b.t.Errorf("%s uses v%d, %s proposes v%d, decision %+v, its record is %+v", id, version, rollout, c.proposal.Version, c.decision, c.hosts[id])
	}
	return c.proposal.Strategy.Parallel
}

// shown checks that a host may use a version without a permit.
func (b *book) shown(id, rollout string, version int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.rollouts[rollout]
	if c == nil {
		return // none, or swept: closed long ago
	}
	own, recorded := c.hosts[id]
	recorded = recorded && own.State != HostSkipped // as if without a record
	done := c.done != nil && c.done.Result == ResultDone
	if recorded && own.State != HostDone || !recorded && !done {
		b.t.Errorf("%s shows v%d of %s, its record says %q, done: %v", id, version, rollout, own.State, done)
	}
}

// phase is that of a rollout that will not go on by itself; empty: it will.
func (b *book) phase(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch c := b.rollouts[name]; {
	case c == nil:
		return "unknown"
	case c.done != nil && b.current == name:
		return "" // somebody has yet to take the name away
	case c.done != nil && c.done.Result == ResultDone:
		return PhaseDone
	case c.done != nil:
		return PhaseAborted
	case c.halted:
		return PhaseHalted
	case c.decision != nil && c.control.Action == ActionPause:
		return PhasePaused
	}
	return ""
}

// openNow is the open rollout.
func (b *book) openNow() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == "" {
		return "", ErrNoRollout
	}
	return b.current, nil
}

// allClosed checks that no rollout was left open.
func (b *book) allClosed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(b.rollouts)) {
		if b.rollouts[name].done == nil {
			errs = append(errs, errors.New(name+" is not closed"))
		}
	}
	return errors.Join(errs...)
}
