package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// How the coordinator knows the state of a rollout: it reads gate, ready version, group,
// shards and records once, and again what a watch reports.

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
	c.looked = c.now
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
		if left := listPause - c.now.Sub(c.listed[shard]); left > 0 && !c.listed[shard].IsZero() {
			c.relist = sooner(c.relist, left)
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
	newest, last := "", int64(0)
	for _, rel := range changed {
		node, ok := snap.Get(rel)
		shard, id, record := strings.Cut(rel, "/")
		switch {
		case rel == "":
		case !record && ok:
			snapshot, err := decode[Snapshot](rel, node.Data)
			if err != nil {
				return err
			}
			if c.snapshots[shard] == nil {
				c.called = c.now
			}
			if node.Stat.Mzxid > last { // the order of changed is that of the names
				newest, last = rel, node.Stat.Mzxid
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
		}
	}
	if first {
		return c.datePast(ctx, newest)
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

// datePast finds the times of events before this term: the latest call, and the end
// of the latest canary.
func (c *coordinator) datePast(ctx context.Context, call string) error {
	var paths []string
	if call != "" {
		paths = append(paths, hostsPath(c.root, c.name)+"/"+call)
	}
	for id, r := range c.records {
		if r.Canary && r.State == HostDone {
			paths = append(paths, recordPath(c.root, c.name, id))
		}
	}
	if len(paths) == 0 {
		return nil
	}
	results, err := c.s.GetMany(ctx, paths)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Err != nil || r.Stat.Mzxid > c.zkZxid {
			continue // of this term: the clock may have jumped since it was read
		}
		at := c.since(r.Stat.Mtime)
		if i == 0 && call != "" {
			c.called = at
			continue
		}
		_, id := session.SplitPath(paths[i])
		c.records[id].since = at
	}
	return nil
}

// reread reads records and snapshots again after a sync: it follows a lost reply.
func (c *coordinator) reread(ctx context.Context, ids, shards []string) error {
	if err := c.s.Sync(ctx, hostsPath(c.root, c.name)); err != nil {
		return err
	}
	paths := make([]string, 0, len(ids)+len(shards))
	for _, id := range ids {
		paths = append(paths, recordPath(c.root, c.name, id))
	}
	for _, shard := range shards {
		paths = append(paths, snapshotPath(c.root, c.name, shard))
	}
	results, err := c.s.GetMany(ctx, paths)
	if err != nil {
		return err
	}
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode) && i < len(ids):
			delete(c.records, ids[i])
		case errors.Is(r.Err, session.ErrNoNode):
		case r.Err != nil:
			return r.Err
		case i < len(ids):
			own, err := decode[HostRecord](paths[i], r.Data)
			if err != nil {
				return err
			}
			c.take(ids[i], own, r.Stat.Version)
		default:
			snapshot, err := decode[Snapshot](paths[i], r.Data)
			if err != nil {
				return err
			}
			c.snapshots[shards[i-len(ids)]], c.called = snapshot.IDs, time.Now()
		}
	}
	return nil
}
