package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
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

// versioned writes the keys as a version and, with flip, makes it the one in use.
func (p *publisher) versioned(ctx context.Context, st *state, flip bool) (Result, error) {
	m, objects := buildVersion(p.cfg.Keys)
	res := Result{
		Layout: LayoutVersioned, Digest: m.sum.String(), Count: m.Count, Size: m.Size,
		Changes: changes(st.keys(), view.KeysOf(p.cfg.Keys)),
	}
	if st.content != nil && st.content.sum == m.sum && flip && !p.cfg.Emergency {
		res.Unchanged, res.Generation, res.Version, res.Previous = true, st.ready.Version, st.ready.Version, st.ready.Previous
		return res, nil
	}
	if st.content != nil {
		st.content.strike(objects)
	}
	if err := p.writeObjects(ctx, objects); err != nil {
		return Result{}, err
	}
	return p.finish(ctx, st, m, res, flip)
}

// finish writes the version and, with flip, makes it the one in use.
func (p *publisher) finish(ctx context.Context, st *state, m *manifest, res Result, flip bool) (Result, error) {
	m.Parent, m.Author, m.Host, m.Message = st.ready.Version, p.cfg.Author, p.cfg.Host, p.cfg.Message
	m.Dry = p.cfg.Dry
	m.Time = time.Now().UTC().Truncate(time.Millisecond)
	n, err := p.writeVersion(ctx, m)
	if err != nil {
		return Result{}, err
	}
	res.Version, res.Generation, res.Previous = n, n, st.ready.Version
	if err = p.createShards(ctx); err != nil {
		return Result{}, err
	}
	if st.content != nil && !p.cfg.NoDelta && p.mayShow(ctx) {
		res.Delta = deltaOf(st.content.sum, res.Changes)
	}
	if !flip {
		return res, nil
	}
	ids, err := SubscriberIDs(ctx, p.s, p.cfg.Path)
	if err != nil {
		return Result{}, err
	}
	r := Ready{Version: n, Digest: res.Digest, Previous: st.ready.Version, Delta: res.Delta}
	for _, list := range ids {
		r.Hosts += len(list)
	}
	have := noReady
	if st.exists {
		have = st.stat.Version
	}
	return res, p.flip(ctx, r, have)
}

// buildVersion returns the version of the keys and the objects that it needs.
func buildVersion(keys map[string][]byte) (*manifest, map[digest][]byte) {
	bits := bucketBits(len(keys))
	lists := make([][]entry, 1<<bits)
	objects := map[digest][]byte{}
	m := &manifest{header: header{Bits: bits, Count: len(keys)}}
	for key, value := range keys {
		e := entry{key: key, size: int64(len(value)), sum: digestOf(value)}
		if len(value) > maxObject {
			e.kind, e.sum = kindParts, addParts(objects, value)
		} else {
			objects[e.sum] = value
		}
		m.Size += e.size
		n := bucketOf(key, bits)
		lists[n] = append(lists[n], e)
	}
	m.buckets = make([]digest, len(lists))
	for i, list := range lists {
		data := encodeBucket(list)
		m.buckets[i] = digestOf(data)
		objects[m.buckets[i]] = data
	}
	delete(objects, digestOf(nil)) // The empty object is never stored.
	m.sum = treeDigest(bits, m.buckets)
	m.Digest = m.sum.String()
	return m, objects
}

// addParts adds the parts of a value that is larger than a request, and the
// list of their digests, whose digest it returns.
func addParts(objects map[digest][]byte, value []byte) digest {
	var list []byte
	for part := range slices.Chunk(value, maxObject) {
		sum := digestOf(part)
		objects[sum] = part
		list = append(list, sum[:]...)
	}
	sum := digestOf(list)
	objects[sum] = list
	return sum
}

// strike removes the objects that this version refers to, because they are stored
// already. It leaves the parts of split values; writing them finds that they exist.
func (c *content) strike(objects map[digest][]byte) {
	for i, sum := range c.buckets {
		delete(objects, sum)
		for _, e := range c.lists[i] {
			delete(objects, e.sum)
		}
	}
}

// writeVersion writes the version's znode and returns its number. A lost reply
// is resolved by looking for the header's id.
func (p *publisher) writeVersion(ctx context.Context, m *manifest) (int64, error) {
	dir := p.cfg.Path + "/" + elemVersions
	if err := p.s.CreateParents(ctx, dir+"/0"); err != nil {
		return 0, fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	m.ID = uuid.NewString()
	data, err := m.encode()
	if err != nil {
		return 0, err
	}
	if len(data) > maxObject {
		return 0, fmt.Errorf("config %s: the version has %d bytes: %w", p.cfg.Path, len(data), ErrBounds)
	}
	if err := p.cfg.at("version"); err != nil {
		return 0, err
	}
	for range maxTries {
		results, err := p.s.Multi(ctx, p.guard, session.CreateOp(dir+"/", data, session.PersistentSequential))
		path := ""
		switch {
		case err == nil:
			path = results[1].Path
		case errors.Is(err, session.ErrUnknown):
			if path, err = findVersion(ctx, p.s, p.cfg.Path, m.ID); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("config %s: write version: %w", p.cfg.Path, err)
		}
		if path == "" {
			continue
		}
		_, name := session.SplitPath(path)
		if n, ok := parseVersionName(name); ok {
			m.number = n
			return n, nil
		}
		// The first sequence is 0, which means "none" everywhere.
		if err := p.s.Delete(ctx, path, -1); err != nil && !errors.Is(err, session.ErrNoNode) && !errors.Is(err, session.ErrUnknown) {
			return 0, fmt.Errorf("config %s: write version: %w", p.cfg.Path, err)
		}
	}
	return 0, fmt.Errorf("config %s: write version: %w", p.cfg.Path, session.ErrUnknown)
}

// findVersion returns the path of the version with the id, or "".
func findVersion(ctx context.Context, s *session.Session, root, id string) (string, error) {
	dir := root + "/" + elemVersions
	if err := s.Sync(ctx, dir); err != nil {
		return "", fmt.Errorf("config %s: %w", root, err)
	}
	names, _, err := s.Children(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("config %s: list versions: %w", root, err)
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		data, _, err := s.Get(ctx, dir+"/"+name)
		if errors.Is(err, session.ErrNoNode) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("config %s: %w", root, err)
		}
		if m, err := decodeManifest(0, data); err == nil && m.ID == id {
			return dir + "/" + name, nil
		}
	}
	return "", nil
}
