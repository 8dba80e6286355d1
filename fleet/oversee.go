package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// oversee watches the activation until the rollout is closed: it opens the
// rollout to all after the canaries have baked, pauses it when the health
// gate says so, halts it when a started host has vanished, and closes it when
// every subscriber is done.
func (c *coordinator) oversee(ctx context.Context, state *State) error {
	for ctx.Err() == nil {
		scene, err := c.look(ctx, state)
		if err != nil {
			return err
		}
		again, closed, err := c.act(ctx, state, scene)
		if err != nil || closed {
			scene.stop()
			return err
		}
		err = scene.wait(ctx, again)
		scene.stop()
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// scene is what the coordinator sees at one moment.
type scene struct {
	closed      bool
	halted      bool
	superseded  bool // ready names a version that this rollout did not bring
	control     Control
	controlStat session.Stat
	activity    Activity
	version     int32 // of the hosts znode
	subscribers []string
	members     int // of the gate's group; -1: no gate
	watches     []*session.Watch
}

func (c *coordinator) look(ctx context.Context, state *State) (*scene, error) {
	sc := &scene{members: -1}
	if err := sc.read(ctx, c, state); err != nil {
		sc.stop()
		return nil, err
	}
	return sc, nil
}

func (sc *scene) read(ctx context.Context, c *coordinator, state *State) error {
	g := &gate{}
	err := g.read(ctx, c.session, c.root, c.name)
	sc.watches = g.watches
	if err != nil {
		return err
	}
	sc.closed, sc.halted, sc.control, sc.activity, sc.version = g.closed, g.halted, g.control, g.activity, g.activityVersion
	sc.controlStat.Version = g.controlVersion
	if err := sc.readReady(ctx, c); err != nil {
		return err
	}
	subscribers, _, watch, err := c.session.ChildrenW(ctx, subscribersPath(c.root))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return err
	}
	sc.subscribers = subscribers
	if watch != nil {
		sc.watches = append(sc.watches, watch)
	}
	if state.Proposal.Strategy.Gate == "" {
		return nil
	}
	members, _, watch, err := c.session.ChildrenW(ctx, state.Proposal.Strategy.Gate)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return err
	}
	sc.members = len(members)
	if watch != nil {
		sc.watches = append(sc.watches, watch)
	}
	return nil
}

// readReady looks whether the version of this rollout is still the one that
// ready names: an emergency publish takes its place.
func (sc *scene) readReady(ctx context.Context, c *coordinator) error {
	data, _, watch, err := c.session.GetW(ctx, readyPath(c.root))
	if errors.Is(err, session.ErrNoNode) {
		return nil // an unfinished change by another tool
	}
	if err != nil {
		return err
	}
	sc.watches = append(sc.watches, watch)
	ready, _, err := config.ParseReady(data)
	sc.superseded = err == nil && ready.Rollout != c.name
	return nil
}

// wait waits for a change of the scene, or for again to pass (0: no limit).
func (sc *scene) wait(ctx context.Context, again time.Duration) error {
	if again <= 0 {
		again = time.Minute // a look now and then costs nothing
	}
	timer := time.NewTimer(again)
	defer timer.Stop()
	changed := make(chan struct{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	for _, w := range sc.watches {
		wg.Go(func() {
			select {
			case <-w.C():
				select {
				case changed <- struct{}{}:
				case <-done:
				}
			case <-done:
			}
		})
	}
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (sc *scene) stop() { stopAll(sc.watches) }

// act does the next thing that the scene asks for; again says when to look at
// the latest.
func (c *coordinator) act(ctx context.Context, state *State, sc *scene) (time.Duration, bool, error) {
	if sc.closed {
		return 0, true, c.clearCurrent(ctx)
	}
	if sc.superseded {
		return 0, true, c.close(ctx, Done{Result: ResultSuperseded, Reason: ResultSuperseded + ": another version was published meanwhile"})
	}
	if sc.halted {
		return 0, false, nil
	}
	if sc.control.Action == ActionAbort { // asked for just before the decision
		return 0, false, createHalt(ctx, c.session, c.root, c.name, Halt{Reason: orDefault(sc.control.Reason, "aborted by "+sc.control.By)})
	}
	strategy := state.Proposal.Strategy
	again, err := c.haltVanished(ctx, sc, time.Duration(strategy.Grace))
	if err != nil || sc.control.Action != ActionRun {
		return again, false, err
	}
	if sc.members >= 0 && sc.members < state.Decision.Members-1 && !sc.control.IgnoreGate {
		reason := fmt.Sprintf("health gate: %s has %d members, it had %d", strategy.Gate, sc.members, state.Decision.Members)
		_, err := c.session.Set(ctx, controlPath(c.root, c.name), encode(Control{Action: ActionPause, Reason: reason, By: "health gate"}), sc.controlStat.Version)
		return again, false, ignoreRace(err)
	}
	if len(sc.activity.Active) > 0 {
		return again, false, nil
	}
	records, err := readRecords[HostRecord](ctx, c.session, hostsPath(c.root, c.name))
	if err != nil {
		return again, false, err
	}
	if sc.activity.Budget >= 0 {
		left, err := c.openAfterBake(ctx, strategy, sc, records)
		return left, false, err
	}
	if outstanding(sc.subscribers, records) > 0 {
		return again, false, nil
	}
	failed, skipped := inState(records, HostFailed), inState(records, HostSkipped)
	closed, err := c.closeDone(ctx, sc, Done{
		Result: ResultDone, Hosts: len(records) - len(failed) - len(skipped), Failed: failed, Skipped: skipped,
	})
	return again, closed, err
}

// closeDone closes the rollout as done if that is still so: the scene was read
// znode by znode, and a host may have failed, and halted the rollout, between
// the reading of halt and that of the hosts. False: look again.
func (c *coordinator) closeDone(ctx context.Context, sc *scene, d Done) (bool, error) {
	_, err := c.session.Multi(ctx,
		c.term.Guard(),
		session.CreateOp(haltPath(c.root, c.name), nil, session.Persistent),
		session.DeleteOp(haltPath(c.root, c.name), -1),
		session.CheckOp(hostsPath(c.root, c.name), sc.version),
		session.CreateOp(donePath(c.root, c.name), encode(d), session.Persistent),
		session.DeleteOp(currentPath(c.root), -1))
	switch {
	case errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrBadVersion):
		return false, nil // the watches of the scene have fired
	case err != nil:
		return false, fmt.Errorf("close: %w", err)
	}
	_ = c.sweep(ctx)
	return true, nil
}

// haltVanished halts the rollout when an active host has been without a
// subscriber znode for the grace time.
func (c *coordinator) haltVanished(ctx context.Context, sc *scene, grace time.Duration) (time.Duration, error) {
	next := time.Duration(0)
	now := time.Now()
	for _, id := range sc.activity.Active {
		if contains(sc.subscribers, id) {
			delete(c.missing, id)
			continue
		}
		since, known := c.missing[id]
		if !known {
			since = now
			c.missing[id] = now
		}
		left := grace - now.Sub(since)
		if left <= 0 {
			return 0, createHalt(ctx, c.session, c.root, c.name, Halt{Host: id, Reason: fmt.Sprintf("absent for %s after it started", grace)})
		}
		if next == 0 || left < next {
			next = left
		}
	}
	return next, nil
}

// openAfterBake lets all hosts start once the canaries are done and the bake
// has passed without a failure.
func (c *coordinator) openAfterBake(ctx context.Context, strategy Strategy, sc *scene, records map[string]HostRecord) (time.Duration, error) {
	eligible := sc.subscribers
	if len(strategy.Order) > 0 {
		eligible = nil
		for _, id := range strategy.Order {
			if contains(sc.subscribers, id) {
				eligible = append(eligible, id)
			}
		}
	}
	if outstanding(eligible, records) > 0 && sc.activity.Started < sc.activity.Budget {
		c.baked = time.Time{}
		return 0, nil
	}
	if c.baked.IsZero() || c.bakedAt != sc.version {
		c.baked, c.bakedAt = time.Now(), sc.version
	}
	if left := time.Duration(strategy.Bake) - time.Since(c.baked); left > 0 {
		return left, nil
	}
	activity := sc.activity
	activity.Budget = -1
	ops := []session.Op{c.term.Guard(), session.SetOp(hostsPath(c.root, c.name), encode(activity), sc.version)}
	if len(strategy.Order) > 0 {
		ops = append(ops, session.CreateOp(openPath(c.root, c.name), nil, session.Persistent))
	}
	_, err := c.session.Multi(ctx, ops...)
	return 0, ignoreRace(err)
}

// outstanding counts the hosts that have neither finished nor stand aside.
func outstanding(hosts []string, records map[string]HostRecord) int {
	waiting := 0
	for _, id := range hosts {
		switch records[id].State {
		case HostDone, HostFailed, HostSkipped:
		default:
			waiting++
		}
	}
	return waiting
}

// inState names the hosts whose records say so, sorted.
func inState(records map[string]HostRecord, state string) []string {
	var ids []string
	for _, id := range sortedKeys(records) {
		if records[id].State == state {
			ids = append(ids, id)
		}
	}
	return ids
}

// ignoreRace is for a change that somebody else made at the same time: the
// next look sees it.
func ignoreRace(err error) error {
	if errors.Is(err, session.ErrBadVersion) || errors.Is(err, session.ErrUnknown) || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	return err
}
