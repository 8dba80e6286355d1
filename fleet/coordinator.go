package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// The coordinator of a rollout.
//
// Loop: read and watch the proposal, the gate, ready, all records and the lists of
// all subscribers; decide what to do; do it; read again. Every
// transaction checks its own candidate, so that a deposed coordinator writes
// nothing, and the gate at the version that was read.
//
// The coordinator counts its own write from the moment it sends it until a read
// shows a newer record. So a grant whose reply was lost counts as a grant until the
// record was read again after a sync. Durations run on the coordinator's clock,
// from the moment it saw the change. Durations that began under a predecessor run
// from ZooKeeper's time.

const (
	firstRest = 200 * time.Millisecond
	lastRest  = 5 * time.Second
	// batch is how long the coordinator gathers changes before it acts.
	batch = 50 * time.Millisecond
	// listPause is the least time between two lists of one shard.
	listPause = time.Second
	// progressPause is the least time between two reports.
	progressPause = time.Second
	// callRate is how many hosts the coordinator calls a second, beyond those that
	// the proposal calls.
	callRate = 2500
	// maxGrants is how many records one transaction changes.
	maxGrants = 128
	// readyDelta bounds the difference that the end of a rollout puts into ready.
	// It can be small: hosts that took part hold the version already.
	readyDelta = 2 << 10
)

// errDeposed says that another candidate leads.
var errDeposed = errors.New("deposed")

// coordinator is one attempt to lead a rollout. Only run touches its fields.
type coordinator struct {
	scene
	observer   observer
	root       string
	s          *session.Session
	term       election.Term
	log        *slog.Logger
	gateAt     time.Time // when the gate was written
	readyV     int32
	queue      *session.WatchQueue
	watches    map[string]*session.Watch // by path; fired ones are taken out
	hosts      *mirror.Mirror
	listed     map[string]time.Time // when a shard was listed
	reported   Progress             // as last reported
	reportedAt time.Time
	zkNow      time.Duration // ZooKeeper's clock less ours
	zkZxid     int64         // when that was read
	looked     time.Time     // when the last look began
	keep       int           // see keepRecords
	misses     int           // acts in a row that were refused, or whose answer was lost
	onHalt     func(why string, since time.Time)
}

func newCoordinator(root, name, agent string, s *session.Session, t election.Term, log *slog.Logger) *coordinator {
	c := &coordinator{
		root: root, s: s, term: t, keep: keepRecords, log: log.With("rollout", name), queue: session.NewWatchQueue(),
		watches: map[string]*session.Watch{}, listed: map[string]time.Time{},
		scene: scene{
			name: name, agent: agent, snapshots: map[string][]string{}, shards: map[string][]string{},
			records: map[string]*hostState{}, live: map[string]bool{}, seen: map[string]time.Time{}, missing: map[string]time.Time{},
			withdrawn: map[string]int{}, denied: map[string]bool{},
		},
	}
	c.observer.results = make(chan observation, 1)
	c.hosts = mirror.New(s, hostsPath(root, name), mirror.Options{Depth: 2, Logger: log})
	return c
}

func (c *coordinator) stop() {
	c.hosts.Close()
	for _, w := range c.watches {
		w.Stop()
	}
}

func (c *coordinator) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.observer.wg.Wait()
	defer cancel()
	var err error
	if c.proposal, _, err = readRecord[Proposal](ctx, c.s, rolloutPath(c.root, c.name)); err != nil {
		return ignore(err, session.ErrNoNode)
	}
	if c.observer.check == nil && c.proposal.Strategy.BakeCheck {
		c.observer.check = noBakeCheck
	}
	if err := c.readClock(ctx); err != nil {
		return err
	}
	for first := true; ; first = false {
		if err := c.look(ctx, first); err != nil {
			return err
		}
		c.onHalt(c.stuck(), c.since(c.gateAt.UnixMilli()))
		if c.gate.State == GateClosed {
			c.log.Info("rollout closed", "result", c.gate.Result)
			return c.collect(ctx)
		}
		c.observe(ctx)
		acts := c.decide()
		for _, a := range acts {
			if err := c.perform(ctx, a); err != nil {
				return err
			}
		}
		if len(acts) > 0 {
			continue
		}
		if err := c.report(ctx); err != nil {
			return err
		}
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
}

// since converts a ZooKeeper time stamp to our clock. The result is not in the future.
func (c *coordinator) since(mtime int64) time.Time {
	now := time.Now()
	if at := time.UnixMilli(mtime).Add(-c.zkNow); at.Before(now) {
		return now.Add(-now.Sub(at.Round(0))) // with the monotonic clock's reading
	}
	return now
}

// wait waits until something has changed, or for wake to pass.
func (c *coordinator) wait(ctx context.Context) error {
	timer := time.NewTimer(cmp.Or(c.wake, time.Minute)) // a look now and then costs nothing
	defer timer.Stop()
	select {
	case <-c.queue.C():
	case <-c.hosts.Dirty():
	case r := <-c.observer.results:
		c.learn(r)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.s.Done():
		return context.Cause(c.s.Context())
	}
	if left := batch - time.Since(c.looked); left > 0 {
		return c.s.Sleep(ctx, left)
	}
	return nil
}

// perform runs the transaction of an act and applies its changes to the scene. The next look
// decides again about one that was refused. After several refusals in a row it pauses: the
// cause may be there for long.
func (c *coordinator) perform(ctx context.Context, a act) error {
	if a.confirm {
		if err := c.confirm(ctx, &a); err != nil || len(a.records) == 0 && a.gate == nil {
			return err
		}
	}
	results, err := c.s.Multi(ctx, c.opsOf(a)...)
	c.log.Debug("coordinator acts", "what", a.what, "hosts", len(a.records), "err", err)
	switch {
	case err == nil:
		c.misses = 0
		if a.gate != nil {
			if a.gate.State == GateRefused {
				c.refused = time.Now()
			}
			c.gate, c.gateAt = a.gate.after(c.gate, c.gateAt), time.UnixMilli(results[1].Stat.Mtime)
			c.gateV++
		}
		for id, r := range a.records {
			c.take(id, r, c.records[id].version+1)
		}
		for _, shard := range a.calls {
			c.snapshots[shard], c.called = c.shards[shard], time.Now()
		}
		c.log.Info("coordinator acts", "what", a.what, "hosts", len(a.records), "gate", c.gate.State)
		return nil
	case errors.Is(err, session.ErrUnknown):
		c.forget(gatePath(c.root, c.name))
		err = c.reread(ctx, sortedKeys(a.records), a.calls)
	default:
		err = c.failed(ctx, a, err)
	}
	if c.misses++; err == nil && c.misses > 3 {
		err = c.s.Sleep(ctx, pace.Backoff(c.misses-3, batch, time.Minute))
	}
	return err
}

// opsOf returns the transaction of an act. Each checks our candidate and the gate.
func (c *coordinator) opsOf(a act) []session.Op {
	ops := []session.Op{c.term.Guard()}
	if a.gate != nil {
		ops = append(ops, session.SetOp(gatePath(c.root, c.name), encode(a.gate.after(c.gate, c.gateAt)), c.gateV))
	} else {
		ops = append(ops, session.CheckOp(gatePath(c.root, c.name), c.gateV))
	}
	if a.unfrozen {
		ops = append(ops, absent(trees.FreezePath(c.root))...)
	}
	switch {
	case a.ready != nil:
		ops = append(ops, session.SetOp(trees.ReadyPath(c.root), a.ready.Encode(), c.readyV))
	case a.checkReady:
		ops = append(ops, session.CheckOp(trees.ReadyPath(c.root), c.readyV))
	}
	if a.closes {
		ops = append(ops, session.DeleteOp(currentPath(c.root), -1))
	}
	for _, id := range sortedKeys(a.records) {
		ops = append(ops, session.SetOp(recordPath(c.root, c.name, id), encode(a.records[id]), c.records[id].version))
	}
	for _, shard := range a.calls {
		call := shardCall{Format: callFormat, Rollout: c.name, Gate: c.gateV, State: c.gate.State, Proposal: c.proposal}
		ops = append(ops, callOps(c.root, call, shard, c.shards[shard])...)
	}
	return ops
}

// failed finds out why a transaction was refused.
func (c *coordinator) failed(ctx context.Context, a act, err error) error {
	var multi *session.MultiError
	if !errors.As(err, &multi) {
		return fmt.Errorf("%s: %w", a.what, err)
	}
	_, id := session.SplitPath(multi.Path)
	switch {
	case multi.Index == 0:
		return fmt.Errorf("%s: %w: %w", a.what, errDeposed, err)
	case multi.Path == gatePath(c.root, c.name), multi.Path == trees.ReadyPath(c.root):
		c.forget(multi.Path)
		return nil
	case multi.Path == trees.FreezePath(c.root) && errors.Is(err, session.ErrNodeExists):
		frozen, err := Frozen(ctx, c.s, c.root)
		if err != nil || frozen == nil {
			return err
		}
		return c.perform(ctx, c.refuse("frozen: "+frozen.Reason))
	case c.records[id] != nil && errors.Is(err, session.ErrNoAuth):
		c.denied[id] = true
		return nil
	case c.records[id] != nil && (errors.Is(err, session.ErrBadVersion) || errors.Is(err, session.ErrNoNode)):
		return c.reread(ctx, []string{id}, nil)
	case len(a.calls) > 0 && (errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrNoNode)):
		return c.reread(ctx, nil, a.calls)
	}
	return fmt.Errorf("%s: %w", a.what, err)
}

// confirm checks after a sync that hosts are absent, before their absence counts.
func (c *coordinator) confirm(ctx context.Context, a *act) error {
	if err := c.s.Sync(ctx, c.root); err != nil {
		return err
	}
	for _, id := range sortedKeys(a.records) {
		_, there, err := c.s.Exists(ctx, SubscriptionPath(c.root, id))
		if err != nil {
			return err
		}
		if there {
			delete(a.records, id)
			delete(c.missing, id)
			c.live[id] = true
		}
	}
	return nil
}

// report writes the progress when it has changed and the last report is not too fresh.
func (c *coordinator) report(ctx context.Context) error {
	now := c.progress()
	if left, _ := c.bake(); c.baking() && left > 0 {
		now.Baked = c.now.Round(0).Add(left + c.zkNow).Truncate(time.Second)
	}
	if now.Counts == c.reported.Counts && now.BakeCheck == c.reported.BakeCheck && now.Baked.Sub(c.reported.Baked).Abs() <= time.Second {
		return nil
	}
	if c.early(progressPause - c.now.Sub(c.reportedAt)) {
		return nil
	}
	_, err := c.s.Multi(ctx, c.term.Guard(), session.SetOp(progressPath(c.root, c.name), encode(now), -1))
	if err != nil && !errors.Is(err, session.ErrUnknown) {
		if multi, ok := errors.AsType[*session.MultiError](err); ok && multi.Index == 0 {
			return fmt.Errorf("report: %w: %w", errDeposed, err)
		}
		return fmt.Errorf("report: %w", err)
	}
	c.reported, c.reportedAt = now, c.now
	return nil
}

// readClock reads ZooKeeper's clock by a write of our own.
func (c *coordinator) readClock(ctx context.Context) error {
	data, _, err := c.s.Get(ctx, c.term.Path)
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	stat, err := c.s.Set(ctx, c.term.Path, data, -1)
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	c.zkNow, c.zkZxid = time.Until(time.UnixMilli(stat.Mtime)), stat.Mzxid
	return nil
}

func (c *coordinator) look(ctx context.Context, first bool) error {
	c.now = time.Now()
	c.looked, c.wake = c.now, 0
	for _, fired := range c.queue.Take() {
		delete(c.watches, fired.Watch.Path())
	}
	for _, read := range []func(context.Context) error{c.readGate, c.readReady, c.readGroup, c.readShards} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return c.readHosts(ctx, first)
}

func (c *coordinator) arm(path string, w *session.Watch) {
	if w != nil {
		c.watches[path] = w
		w.Join(c.queue)
	}
}

// forget makes the next look read what is at the path again.
func (c *coordinator) forget(path string) {
	c.watches[path].Stop()
	delete(c.watches, path)
}

func (c *coordinator) readGate(ctx context.Context) error {
	path := gatePath(c.root, c.name)
	if c.watches[path] != nil {
		return nil
	}
	data, stat, w, err := c.s.GetW(ctx, path)
	if errors.Is(err, session.ErrNoNode) {
		c.gate = Gate{State: GateClosed}
		return nil
	}
	if err != nil {
		return err
	}
	c.arm(path, w)
	c.gateV, c.gateAt = stat.Version, time.UnixMilli(stat.Mtime)
	if c.gate, err = decode[Gate](path, data); err == nil && c.gate.State == GateRefused && c.refused.IsZero() {
		c.refused = c.now
	}
	return err
}

// readReady checks that ready is still the one that the rollout builds on.
func (c *coordinator) readReady(ctx context.Context) error {
	path := trees.ReadyPath(c.root)
	if c.watches[path] != nil {
		return nil
	}
	_, stat, w, err := c.s.GetW(ctx, path)
	if errors.Is(err, session.ErrNoNode) {
		_, _, w, err = c.s.ExistsW(ctx, path) // an unfinished change by another tool
		c.arm(path, w)
		return err
	}
	if err != nil {
		return err
	}
	c.arm(path, w)
	c.readyV = stat.Version
	c.superseded = stat.Mzxid != c.proposal.Ready.Mzxid
	return nil
}

func (c *coordinator) readGroup(ctx context.Context) error {
	path := c.proposal.Strategy.Gate
	if path == "" || c.watches[path] != nil {
		return nil
	}
	list, w, err := c.s.ListW(ctx, path)
	if err != nil {
		return err
	}
	c.arm(path, w)
	c.members = len(list.Names)
	return nil
}

// readShards lists the subscribers of the shards that have changed.
func (c *coordinator) readShards(ctx context.Context) error {
	changed := false
	for _, shard := range shardNames() {
		path := shardPath(c.root, shard)
		if c.watches[path] != nil {
			continue
		}
		if c.early(listPause - c.now.Sub(c.listed[shard])) {
			continue
		}
		list, w, err := c.s.ListW(ctx, path)
		if err != nil {
			return err
		}
		c.arm(path, w)
		c.listed[shard] = c.now
		slices.Sort(list.Names)
		c.shards[shard] = list.Names
		changed = true
	}
	if !changed {
		return nil
	}
	c.live = map[string]bool{}
	for _, ids := range c.shards {
		for _, id := range ids {
			c.live[id] = true
			if c.seen[id].IsZero() {
				c.seen[id] = c.now
			}
		}
	}
	maps.DeleteFunc(c.seen, func(id string, _ time.Time) bool { return !c.live[id] })
	return nil
}

func (c *coordinator) readHosts(ctx context.Context, first bool) error {
	snap, changed, err := c.hosts.Refresh(ctx)
	if err != nil {
		return err
	}
	c.now = time.Now() // what was read may have happened since the look began
	last := int64(0)
	for _, rel := range changed {
		node, ok := snap.Get(rel)
		at := c.now
		if first && node.Stat.Mzxid <= c.zkZxid { // else it is of this term: the clock may have jumped since it was read
			at = c.since(node.Stat.Mtime)
		}
		shard, id, record := strings.Cut(rel, "/")
		switch {
		case rel == "":
		case !record && ok:
			snapshot, err := decode[shardHosts](rel, node.Data)
			if err != nil {
				return err
			}
			if _, called := c.snapshots[shard]; !called && node.Stat.Mzxid > last { // the order of changed is any
				c.called, last = at, node.Stat.Mzxid
			}
			c.snapshots[shard] = snapshot.IDs
		case record && !ok:
			delete(c.records, id)
		case record:
			r, err := decode[HostRecord](rel, node.Data)
			if err != nil {
				return err
			}
			c.take(id, r, node.Stat.Version)
			if first && r.Canary && r.State == HostDone {
				c.records[id].since = at
			}
		}
	}
	return nil
}

// take stores a record that was read, unless our own write is newer. The record may
// be as new as the reply, so c.now, the time of the look, would be too early.
func (c *coordinator) take(id string, r HostRecord, version int32) {
	old := c.records[id]
	if old != nil && version <= old.version {
		return
	}
	if old != nil && old.State == HostGranted && r.State == HostWait {
		c.withdrawn[id]++ // also when the reply was lost
	}
	now := &hostState{HostRecord: r, version: version, since: time.Now()}
	if old != nil && old.State == r.State && old.Lost == r.Lost && old.Gate == r.Gate {
		now.since = old.since
	}
	c.records[id] = now
}

// reread reads records and snapshots again after a sync: it follows a lost reply, or an
// event that has not come.
func (c *coordinator) reread(ctx context.Context, ids, shards []string) error {
	if err := c.s.Sync(ctx, hostsPath(c.root, c.name)); err != nil {
		return err
	}
	for _, id := range ids {
		c.hosts.Mark(Shard(id) + "/" + id)
	}
	for _, shard := range shards {
		c.hosts.Mark(shard)
	}
	return c.readHosts(ctx, false)
}
