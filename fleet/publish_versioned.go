package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Publishing a versioned tree.
//
// Steps, under the publishers' lock: write the values and buckets that are not
// stored yet, each under its digest; write the version, an immutable sequential
// znode; set ready to it at the version of ready that was read, in one multi
// with the guard against a freeze.
//
// Guarantees: until the last step no reader sees a change. A publisher that dies
// before it leaves only objects and a version, which garbage collection deletes. Of
// two publishers one wins and the other gets an error.

// put writes a version and, with flip, makes it the one in use. objects are those that
// may not be stored yet.
func (p *publisher) put(ctx context.Context, st *trees.State, m *trees.Manifest, objects map[trees.Digest][]byte, changes []config.Change, flip bool) (Result, error) {
	res := Result{Layout: config.LayoutVersioned, Digest: m.Sum.String(), Count: m.Count, Size: m.Size, Changes: changes}
	if st.Content != nil {
		if st.Content.Sum == m.Sum && flip && !p.cfg.Emergency {
			res.Unchanged, res.Generation, res.Version, res.Previous = true, st.Ready.Version, st.Ready.Version, st.Ready.Previous
			return res, nil
		}
		for i, sum := range st.Content.Buckets { // What is stored need not be written, but for parts of split values.
			delete(objects, sum)
			for _, e := range st.Content.Lists[i] {
				delete(objects, e.Sum)
			}
		}
	}
	if err := p.writeObjects(ctx, objects); err != nil {
		return Result{}, err
	}
	n, err := p.writeVersion(ctx, st, m, flip)
	if err != nil {
		return Result{}, err
	}
	res.Version, res.Generation, res.Previous = n, n, m.Parent
	if err = p.createShards(ctx); err != nil {
		return Result{}, err
	}
	if st.Content != nil && !p.cfg.NoDelta && p.mayShow(ctx) {
		res.Delta = deltaOf(st.Content.Sum, res.Changes)
	}
	if !flip {
		return res, nil
	}
	ids, err := subscriberIDs(ctx, p.s, p.cfg.Path)
	if err != nil {
		return Result{}, err
	}
	r := trees.Ready{Version: n, Digest: res.Digest, Previous: m.Parent, Delta: res.Delta}
	for _, list := range ids {
		r.Hosts += len(list)
	}
	have := noReady
	if st.Exists {
		have = st.Stat.Version
	}
	return res, p.flip(ctx, r, have)
}

func buildVersion(keys map[string][]byte) (*trees.Manifest, map[trees.Digest][]byte) {
	bits := trees.BucketBits(len(keys))
	lists := make([][]trees.Entry, 1<<bits)
	objects := map[trees.Digest][]byte{}
	m := &trees.Manifest{Header: trees.Header{Bits: bits, Count: len(keys)}}
	for key, value := range keys {
		e := trees.Entry{Key: key, Size: int64(len(value)), Sum: trees.DigestOf(value)}
		if len(value) > trees.MaxObject { // The object is the list of its parts.
			var list []byte
			for part := range slices.Chunk(value, trees.MaxObject) {
				sum := trees.DigestOf(part)
				objects[sum] = part
				list = append(list, sum[:]...)
			}
			value, e.Kind, e.Sum = list, trees.KindParts, trees.DigestOf(list)
		}
		objects[e.Sum] = value
		m.Size += e.Size
		n := trees.BucketOf(key, bits)
		lists[n] = append(lists[n], e)
	}
	m.Buckets = make([]trees.Digest, len(lists))
	for i, list := range lists {
		data := trees.EncodeBucket(list)
		m.Buckets[i] = trees.DigestOf(data)
		objects[m.Buckets[i]] = data
	}
	delete(objects, trees.DigestOf(nil)) // The empty object is never stored.
	m.Sum = trees.TreeDigest(bits, m.Buckets)
	m.Digest = m.Sum.String()
	return m, objects
}

// writeVersion writes the version's znode and returns its number, which is above every
// number that the tree or an agent that follows it has seen.
func (p *publisher) writeVersion(ctx context.Context, st *trees.State, m *trees.Manifest, flip bool) (int64, error) {
	dir := trees.VersionsPath(p.cfg.Path)
	if err := p.s.CreateParents(ctx, dir+"/0"); err != nil {
		return 0, fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	seen, err := p.seen(ctx, st)
	if err != nil {
		return 0, err
	}
	if m.Parent, err = p.parent(ctx, st, seen, flip); err != nil {
		return 0, err
	}
	m.ID, m.Author, m.Host, m.Message, m.Dry = uuid.NewString(), p.cfg.Author, p.cfg.Host, p.cfg.Message, p.cfg.Dry
	m.Time = time.Now().UTC().Truncate(time.Millisecond)
	data := m.Encode()
	if len(data) > trees.MaxObject {
		return 0, fmt.Errorf("config %s: the version has %d bytes: %w", p.cfg.Path, len(data), config.ErrBounds)
	}
	if err := p.cfg.at("version"); err != nil {
		return 0, err
	}
	for range maxTries {
		path, err := p.createVersion(ctx, m.ID, data)
		_, name := session.SplitPath(path)
		n, _ := trees.ParseVersionName(name) // 0: the first sequence, which means "none" everywhere
		if n > seen {
			m.Number = n
			return n, nil
		}
		if path != "" {
			err = ignore(p.s.Delete(ctx, path, -1), session.ErrNoNode)
		}
		if multi, ok := errors.AsType[*session.MultiError](err); ok && multi.Index == 1 && errors.Is(err, session.ErrNodeExists) { // restored by its name
			var numbers []int64
			if numbers, err = trees.VersionNumbers(ctx, p.s, p.cfg.Path); len(numbers) > 0 {
				seen = max(seen, numbers[len(numbers)-1])
			}
		}
		if err == nil {
			err = p.raise(ctx, seen)
		}
		if err != nil && !errors.Is(err, session.ErrUnknown) {
			return 0, fmt.Errorf("config %s: write version: %w", p.cfg.Path, err)
		}
	}
	return 0, fmt.Errorf("config %s: write version: %w", p.cfg.Path, session.ErrUnknown)
}

// createVersion writes a version under the next number of ZooKeeper's, and returns its
// path; "": not written. After a lost reply it looks for the id.
func (p *publisher) createVersion(ctx context.Context, id string, data []byte) (string, error) {
	dir := trees.VersionsPath(p.cfg.Path)
	results, err := p.s.Multi(ctx, p.guard, session.CreateOp(dir+"/", data, session.PersistentSequential))
	if err == nil {
		return results[1].Path, nil
	}
	if !errors.Is(err, session.ErrUnknown) {
		return "", err
	}
	if err := p.s.Sync(ctx, dir); err != nil {
		return "", err
	}
	children, err := p.s.GetChildren(ctx, dir)
	for _, c := range children {
		if m, bad := trees.DecodeManifest(0, c.Data); bad == nil && m.ID == id {
			return dir + "/" + c.Name, nil
		}
	}
	return "", err
}

// seen returns the highest version number that the tree or an agent knows. A tree that
// was deleted and published again begins at 0, and its agents may know higher numbers;
// so they may when ready is damaged.
func (p *publisher) seen(ctx context.Context, st *trees.State) (int64, error) {
	if st.Ready.Version > 0 {
		return st.Ready.Version, nil
	}
	seen := int64(0)
	subscribers, err := Subscribers(ctx, p.s, p.cfg.Path)
	for _, sub := range subscribers {
		seen = max(seen, sub.Version)
	}
	return seen, err
}

// parent returns the version that is in use before another one is: what ready names. If
// ready is gone or damaged, that is the version that agents have seen, if it is there.
func (p *publisher) parent(ctx context.Context, st *trees.State, seen int64, flip bool) (int64, error) {
	if st.Ready.Version > 0 || seen == 0 || !flip || p.cfg.Emergency { // in an emergency some have seen a version that failed
		return st.Ready.Version, nil
	}
	_, there, err := p.s.Exists(ctx, trees.VersionPath(p.cfg.Path, seen))
	if !there {
		seen = 0
	}
	return seen, err
}

// raise makes ZooKeeper give numbers above seen: each znode that is created below the
// versions takes one.
func (p *publisher) raise(ctx context.Context, seen int64) error {
	for range maxRaises {
		next, err := guessVersion(ctx, p.s, p.cfg.Path)
		if err != nil || next > seen {
			return err
		}
		ops, name := []session.Op{p.guard}, trees.VersionsPath(p.cfg.Path)+"/raise"
		for range min(seen-next+1, multiOps/2) {
			ops = append(ops, session.CreateOp(name, nil, session.Persistent), session.DeleteOp(name, -1))
		}
		if _, err := p.s.Multi(ctx, ops...); err != nil {
			return err
		}
	}
	return fmt.Errorf("version %d is too high to continue from", seen)
}

// maxRaises bounds the requests that raise a number.
const maxRaises = 1000

// deltaOf returns the changes as a Delta, or nil when they are too large.
func deltaOf(from trees.Digest, list []config.Change) *trees.Delta {
	d := &trees.Delta{From: from.String(), Set: map[string][]byte{}}
	for _, c := range list {
		if c.Kind == config.Removed {
			d.Del = append(d.Del, c.Key)
		} else {
			d.Set[c.Key] = slices.Concat([]byte{}, c.New) // never nil: null is no value
		}
	}
	if !d.Fits(trees.MaxDelta) {
		return nil
	}
	return d
}

// mayShow reports whether all readers of ready and of calls may read the contents.
func (p *publisher) mayShow(ctx context.Context) bool {
	var first []string
	for i, path := range []string{trees.ObjectsPath(p.cfg.Path), trees.ReadyPath(p.cfg.Path), shardPath(p.cfg.Path, shardNames()[0])} {
		acl, _, err := p.s.GetACL(ctx, path)
		if err != nil {
			return false
		}
		words := lists.Map(acl, session.FormatACL)
		slices.Sort(words)
		if i > 0 && !slices.Equal(first, words) {
			return false
		}
		first = words
	}
	return true
}

// Rollback makes the content of an older version the one in use, as a new version:
// history only moves forward. If to is 0, it takes the version before the one in
// use. It uses the path, the description of the new version and Check from cfg. It
// does not check the bounds, because the content was in use before.
func Rollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64) (Result, error) {
	return rollback(ctx, s, cfg, to, true)
}

// rollback writes a version with the buckets of an older one; with flip it is in use
// then. All objects of the older version exist, because garbage collection keeps them
// as long as the version.
func rollback(ctx context.Context, s *session.Session, cfg PublishConfig, to int64, flip bool) (Result, error) {
	root := cfg.Path
	return change(ctx, s, cfg, "rollback", func(ctx context.Context, p *publisher) (Result, error) {
		st, err := p.begin(ctx, flip)
		if err != nil {
			return Result{}, err
		}
		if st.Layout != config.LayoutVersioned {
			return Result{}, fmt.Errorf("config %s is flat and keeps no versions: %w", root, config.ErrNoVersion)
		}
		if to = cmp.Or(to, st.Ready.Previous); to == 0 {
			return Result{}, fmt.Errorf("config %s: version %d: %w", root, st.Ready.Version, ErrNoPrevious)
		}
		old, err := trees.Load(ctx, s, root, to, st.Content, 0)
		if err != nil {
			return Result{}, fmt.Errorf("config %s: %w", root, err)
		}
		m := old.Manifest
		m.RollbackOf = to
		return p.put(ctx, st, &m, nil, changesOf(st, old.Keys), flip)
	})
}

func (p *publisher) writeObjects(ctx context.Context, objects map[trees.Digest][]byte) error {
	if len(objects) == 0 {
		return nil
	}
	if err := p.cfg.at("objects"); err != nil {
		return err
	}
	sums := slices.SortedFunc(maps.Keys(objects), func(a, b trees.Digest) int { return bytes.Compare(a[:], b[:]) })
	if err := p.objectParents(ctx, sums); err != nil {
		return err
	}
	for len(sums) > 0 {
		n, size := 1, len(objects[sums[0]])
		for n < len(sums) && n < multiOps && size+len(objects[sums[n]]) <= multiBytes {
			size += len(objects[sums[n]])
			n++
		}
		if err := p.writeBatch(ctx, sums[:n], objects); err != nil {
			return fmt.Errorf("config %s: write objects: %w", p.cfg.Path, err)
		}
		sums = sums[n:]
	}
	return nil
}

// objectParents creates the directories of the objects that do not exist yet.
func (p *publisher) objectParents(ctx context.Context, sums []trees.Digest) error {
	dir := trees.ObjectsPath(p.cfg.Path)
	if err := p.s.CreateParents(ctx, dir+"/00"); err != nil {
		return fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	names, _, err := p.s.Children(ctx, dir)
	if err != nil {
		return fmt.Errorf("config %s: list objects: %w", p.cfg.Path, err)
	}
	var missing []string
	for _, sum := range sums {
		if name := hex.EncodeToString(sum[:1]); !slices.Contains(names, name) {
			names = append(names, name)
			missing = append(missing, dir+"/"+name)
		}
	}
	return p.createAll(ctx, missing)
}

// writeBatch creates objects in one multi. Some may exist already, from a publisher
// that died or from our own write whose reply was lost. Then it verifies the
// existing ones, repairs them if needed, and creates the rest.
func (p *publisher) writeBatch(ctx context.Context, sums []trees.Digest, objects map[trees.Digest][]byte) error {
	for range maxTries {
		ops := []session.Op{p.guard}
		for _, sum := range sums {
			ops = append(ops, session.CreateOp(trees.ObjectPath(p.cfg.Path, sum), objects[sum], session.Persistent))
		}
		_, err := p.s.Multi(ctx, ops...)
		var multi *session.MultiError
		exists := errors.As(err, &multi) && multi.Index > 0 && errors.Is(err, session.ErrNodeExists)
		if !exists && !errors.Is(err, session.ErrUnknown) {
			return err
		}
		if sums, err = p.missing(ctx, sums, objects); err != nil || len(sums) == 0 {
			return err
		}
	}
	return session.ErrUnknown
}

func (p *publisher) missing(ctx context.Context, sums []trees.Digest, objects map[trees.Digest][]byte) ([]trees.Digest, error) {
	paths := lists.Map(sums, func(sum trees.Digest) string { return trees.ObjectPath(p.cfg.Path, sum) })
	results, err := p.s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	var missing []trees.Digest
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode):
			missing = append(missing, sums[i])
		case r.Err != nil:
			return nil, r.Err
		case trees.Verify(sums[i], r.Data) != nil:
			if _, err := p.s.Set(ctx, paths[i], objects[sums[i]], r.Stat.Version); err != nil {
				return nil, fmt.Errorf("repair object %s: %w", sums[i], err)
			}
		}
	}
	return missing, nil
}

// deepestFirst orders paths so that children come before their parents.
func deepestFirst(paths []string) {
	slices.SortFunc(paths, func(a, b string) int {
		return cmp.Or(cmp.Compare(depth(b), depth(a)), cmp.Compare(a, b))
	})
}
