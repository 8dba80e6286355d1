package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// DefaultKeep is how many of the latest versions garbage collection keeps.
const DefaultKeep = 20

// Collected counts the znodes that a garbage collection deleted.
type Collected struct {
	Versions []int64 `json:"versions"`
	Objects  int     `json:"objects"`
}

// GC deletes old versions, and the objects that only they referenced. It keeps the
// latest keep versions (0: [DefaultKeep]), the version in use and the previous one,
// the versions of the open rollout and of the rollout that brought the version in
// use, and the versions of all subscribers. For a deleted config it keeps the same as for
// the version in use, for [TrashKept].
//
// GC holds the publishers' lock, so no publisher relies on an object that GC
// deletes. Rollouts do not take that lock. So each delete checks that two znodes
// are unchanged: versions, which a proposal sets, and ready, which the end of a
// rollout sets. If one has changed, GC starts over. A reader of a deleted version
// finds a znode missing and reads ready again.
func GC(ctx context.Context, s *session.Session, root string, keep int, log *slog.Logger) (Collected, error) {
	var c Collected
	if keep <= 0 {
		keep = DefaultKeep
	}
	if err := mustHaveConfig(ctx, s, root); err != nil {
		return c, err
	}
	err := withLock(ctx, s, root, "garbage collection", log, func(ctx context.Context, guard session.Op) error {
		for range maxTries {
			g := &collector{s: s, root: root, guards: []session.Op{guard}, done: &c}
			if err := g.run(ctx, keep); !errors.Is(err, session.ErrBadVersion) {
				return err
			}
		}
		return fmt.Errorf("%d proposals or flips came in between", maxTries)
	})
	if err != nil {
		return c, fmt.Errorf("collect garbage of config %s: %w", root, err)
	}
	return c, nil
}

type collector struct {
	s      *session.Session
	root   string
	guards []session.Op // of every delete: the lock, versions, ready
	done   *Collected
}

func (g *collector) run(ctx context.Context, keep int) error {
	numbers, err := g.epoch(ctx)
	if err != nil {
		return err
	}
	needed, err := g.needed(ctx)
	if err != nil {
		return err
	}
	manifests, err := trees.ReadManifests(ctx, g.s, g.root)
	if err != nil {
		return err
	}
	readable := map[int64]*trees.Manifest{}
	for _, m := range manifests {
		readable[m.Number] = m
	}
	live, whole := map[trees.Digest]bool{}, true
	var dead []int64
	for _, n := range slices.Backward(numbers) {
		m := readable[n]
		latest := keep > 0 && (m == nil || !m.Dry)
		if latest {
			keep--
		}
		if !needed[n] && !latest {
			dead = append(dead, n)
			continue
		}
		if whole = whole && m != nil; whole {
			err = g.addLive(ctx, m, live)
		}
		if trees.IsDamage(err) {
			whole, err = false, nil
		}
		if err != nil {
			return err
		}
	}
	if err := g.purge(ctx, dead); err != nil { // first: without its version it could not be restored
		return err
	}
	slices.Reverse(dead)
	if err := g.deleteVersions(ctx, dead); err != nil { // before their objects
		return err
	}
	if !whole {
		return nil // a version is damaged, so its objects are unknown: delete none
	}
	return g.sweepObjects(ctx, live)
}

func (g *collector) deleteVersions(ctx context.Context, numbers []int64) error {
	for chunk := range slices.Chunk(numbers, multiOps) {
		paths := lists.Map(chunk, func(n int64) string { return trees.VersionPath(g.root, n) })
		if err := deleteAll(ctx, g.s, g.guards, paths); err != nil {
			return err
		}
		g.done.Versions = append(g.done.Versions, chunk...)
	}
	return nil
}

// purge deletes the record of a deleted config whose version goes.
func (g *collector) purge(ctx context.Context, dead []int64) error {
	deleted, err := InTrash(ctx, g.s, g.root)
	if errors.Is(err, ErrNotDeleted) || err == nil && !slices.Contains(dead, deleted.Version) {
		return nil
	}
	if err != nil {
		return err
	}
	return deleteAll(ctx, g.s, g.guards, []string{trashPath(g.root)})
}

// epoch reads the znodes that the deletes check, and returns the existing versions.
func (g *collector) epoch(ctx context.Context) ([]int64, error) {
	if err := g.s.Sync(ctx, g.root); err != nil {
		return nil, fmt.Errorf("sync: %w", err)
	}
	for _, path := range []string{trees.VersionsPath(g.root), trees.ReadyPath(g.root)} {
		st, ok, err := g.s.Exists(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if ok {
			g.guards = append(g.guards, session.CheckOp(path, st.Version))
		}
	}
	return trees.VersionNumbers(ctx, g.s, g.root)
}

// needed returns the versions that are still referenced. The order of its reads
// matters: a subscriber may switch to the version of a rollout that closes.
func (g *collector) needed(ctx context.Context) (map[int64]bool, error) {
	needed := map[int64]bool{}
	r, _, err := trees.ReadReady(ctx, g.s, g.root)
	if err != nil && !errors.Is(err, config.ErrNotReady) {
		return nil, err
	}
	deleted, _, err := readTrash(ctx, g.s, g.root)
	if err != nil && !errors.Is(err, ErrNotDeleted) {
		return nil, err
	}
	var restored trees.Ready // a restore puts it into use as it was
	if time.Since(deleted.At) < TrashKept {
		restored, _, _ = trees.ParseReady(deleted.Ready)
	}
	for _, r := range []trees.Ready{r, restored} {
		needed[r.Version], needed[r.Previous] = true, true
	}
	open, _, err := g.s.Get(ctx, currentPath(g.root))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("read the open rollout: %w", err)
	}
	for _, name := range []string{string(open), r.Rollout, restored.Rollout} {
		replaced, err := g.rollout(ctx, name, needed)
		if err != nil {
			return nil, err
		}
		for _, name := range replaced { // their hosts use these versions until their turn
			if _, err := g.rollout(ctx, name, needed); err != nil {
				return nil, err
			}
		}
	}
	agents, err := Subscribers(ctx, g.s, g.root)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		needed[a.Version] = true
	}
	return needed, nil
}

// rollout adds the versions of a rollout, and returns the rollouts that it replaces.
func (g *collector) rollout(ctx context.Context, name string, needed map[int64]bool) ([]string, error) {
	if name == "" || strings.Contains(name, "/") {
		return nil, nil
	}
	proposal, _, err := readRecord[Proposal](ctx, g.s, rolloutPath(g.root, name))
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil // collected: it was closed long ago
	}
	if err != nil {
		return nil, fmt.Errorf("read rollout %s, nothing is deleted: %w", name, err)
	}
	needed[proposal.Version], needed[proposal.Previous] = true, true
	return proposal.Replaces, nil
}

func (g *collector) addLive(ctx context.Context, m *trees.Manifest, live map[trees.Digest]bool) error {
	var buckets []trees.Bucket
	for n, sum := range m.Buckets {
		if !live[sum] {
			buckets = append(buckets, m.Bucket(n))
		}
	}
	lists, err := trees.ReadBuckets(ctx, g.s, g.root, buckets)
	if err != nil {
		return err
	}
	for _, e := range slices.Concat(lists...) {
		live[e.Sum] = true
		if e.Kind != trees.KindParts {
			continue
		}
		parts, err := trees.ReadPartList(ctx, g.s, g.root, e)
		if err != nil {
			return err
		}
		for _, sum := range parts {
			live[sum] = true
		}
	}
	for _, b := range buckets {
		live[b.Sum] = true
	}
	return nil
}

func (g *collector) sweepObjects(ctx context.Context, live map[trees.Digest]bool) error {
	dir := trees.ObjectsPath(g.root)
	shelves, _, err := g.s.Children(ctx, dir)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("list objects: %w", err)
	}
	var paths []string
	for _, shelf := range shelves {
		names, _, err := g.s.Children(ctx, dir+"/"+shelf)
		if err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
		for _, name := range names {
			if sum, err := trees.ParseDigest(trees.DigestPrefix + name); err == nil && !live[sum] {
				paths = append(paths, dir+"/"+shelf+"/"+name)
			}
		}
	}
	for chunk := range slices.Chunk(paths, multiOps) {
		if err := deleteAll(ctx, g.s, g.guards, chunk); err != nil {
			return err
		}
		g.done.Objects += len(chunk)
	}
	return nil
}

// Bounds on the records of past rollouts.
const (
	// keepRollouts is the number of latest rollouts that are kept for people.
	keepRollouts = 20
	// keepRecords is the largest number of records at which a closed rollout keeps
	// all of them.
	keepRecords = 1000
	// keepAborts is the number of refusals that a larger rollout keeps.
	keepAborts = 100
)

// collect deletes old rollouts, and most records of large closed ones. It keeps the
// rollouts that the open one replaces, because returning hosts read them, and the
// rollout of the version in use. Old records only take space, so a failed deletion
// waits for the end of the next rollout.
func (c *coordinator) collect(ctx context.Context) error {
	all, _, err := c.s.Children(ctx, trees.RolloutsPath(c.root))
	if err == nil {
		err = c.collectDry(ctx, all)
	}
	if err != nil {
		return ignore(err, session.ErrNoNode)
	}
	if c.proposal.Dry {
		return c.linger(ctx)
	}
	names := inOrder(all)
	ready, _, err := trees.ReadReady(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	open, err := Opened(ctx, c.s, c.root)
	if err != nil {
		return err
	}
	needed := []string{ready.Rollout}
	if open != nil {
		needed = append(append(needed, open.Name), open.Proposal.Replaces...)
	}
	for i, name := range names {
		old := i < len(names)-keepRollouts
		if !old && c.proposal.Hosts <= c.keep {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		if err != nil && !errors.Is(err, ErrNoRollout) {
			return err
		}
		switch {
		case err != nil:
			err = forgetRollout(ctx, c.s, c.root, name)
		case state.Open():
		case old && !slices.Contains(needed, name):
			err = forgetRollout(ctx, c.s, c.root, name)
		case !slices.Contains(needed[1:], name) && state.Proposal.Hosts > c.keep:
			// Also one that was needed at its own end, or whose coordinator was gone.
			err = c.compact(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compact deletes the snapshots and records of a closed rollout. It keeps the
// records of failed hosts, which those hosts read again, and some records that say
// why the version was refused.
func (c *coordinator) compact(ctx context.Context, name string) error {
	state, err := Read(ctx, c.s, c.root, name)
	if err != nil {
		return ignore(err, ErrNoRollout)
	}
	aborts := 0
	stays := map[string]bool{}
	var paths []string
	for _, id := range sortedKeys(state.Hosts) {
		r := state.Hosts[id]
		if r.State == HostAbort {
			aborts++
		}
		if r.State == HostFailed || r.State == HostAbort && aborts <= keepAborts {
			stays[Shard(id)] = true
			continue
		}
		paths = append(paths, recordPath(c.root, name, id))
	}
	for _, shard := range shardNames() {
		if !stays[shard] {
			paths = append(paths, snapshotPath(c.root, name, shard))
		}
	}
	return deleteAll(ctx, c.s, nil, paths)
}

// forgetRollout deletes one closed rollout. It deletes the znodes below it first.
// It deletes the gate together with the rollout, because the gate says that the
// rollout is closed.
func forgetRollout(ctx context.Context, s *session.Session, root, name string) error {
	var paths []string
	for _, dir := range []string{hostsPath(root, name), coordinatorPath(root, name)} {
		below, err := deepest(ctx, s, dir)
		if err != nil {
			return err
		}
		paths = append(append(paths, below...), dir)
	}
	paths = append(paths, progressPath(root, name), gatePath(root, name), rolloutPath(root, name))
	return deleteAll(ctx, s, nil, paths)
}

// deepest lists the znodes below a path, children before parents.
func deepest(ctx context.Context, s *session.Session, path string) ([]string, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil {
		return nil, ignore(err, session.ErrNoNode)
	}
	slices.Sort(names)
	var paths []string
	for _, name := range names {
		below, err := deepest(ctx, s, path+"/"+name)
		if err != nil {
			return nil, err
		}
		paths = append(append(paths, below...), path+"/"+name)
	}
	return paths, nil
}
