package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Bounds on what one request reads. Servers and clients limit replies, like
// requests, to about a megabyte.
const (
	readBytes   = 512 << 10
	readBuckets = 64
	readObjects = 512
)

// errGone says that a znode of a version does not exist. Garbage collection deleted
// it, so ready names another version by now.
var errGone = errors.New("version is gone")

// noVersionError is the number of a version that does not exist or was deleted.
type noVersionError int64

// Error implements error.
func (n noVersionError) Error() string { return fmt.Sprintf("there is no version %d", int64(n)) }

// Is makes the error match ErrNoVersion and errGone.
func (n noVersionError) Is(target error) bool { return target == ErrNoVersion || target == errGone }

// content is a verified version in memory. The next load compares with it.
type content struct {
	manifest
	lists [][]entry // by bucket
	keys  *view.Keys
}

// values returns the values in the given buckets, by digest.
func (c *content) values(buckets []int) map[digest][]byte {
	have := map[digest][]byte{}
	if c == nil {
		return have
	}
	for _, n := range buckets {
		for _, e := range c.lists[n] {
			if k, ok := c.keys.Get(e.key); ok {
				have[e.sum] = k.Value
			}
		}
	}
	return have
}

// tree returns the content as a tree.
func (c *content) tree(name, root string, r Ready, last int64) *view.Tree {
	return view.NewTree(view.Tree{
		Name: name, Path: root, Layout: LayoutVersioned, Generation: c.number, Digest: c.sum.String(),
		Previous: r.Previous, Rollout: r.Rollout, Last: last,
	}, c.keys)
}

// loadManifest reads the list of a version's buckets.
func loadManifest(ctx context.Context, s *session.Session, root string, n int64) (*manifest, error) {
	data, _, err := s.Get(ctx, versionPath(root, n))
	if errors.Is(err, session.ErrNoNode) {
		return nil, noVersionError(n)
	}
	if err != nil {
		return nil, fmt.Errorf("read version %d: %w", n, err)
	}
	return decodeManifest(n, data)
}

// load reads a version. With prev (may be nil) it reads only the buckets that
// differ, and of those only the new values. It returns an error for more than limit
// bytes; 0 means no limit.
func load(ctx context.Context, s *session.Session, root string, n int64, prev *content, limit int64) (*content, error) {
	m, err := loadManifest(ctx, s, root, n)
	if err != nil {
		return nil, err
	}
	if err = withinLimit(n, m.Count, m.Size, limit); err != nil {
		return nil, err
	}
	if prev != nil && prev.sum == m.sum {
		m.Count, m.Size = prev.Count, prev.Size // which were counted
		return &content{manifest: *m, lists: prev.lists, keys: prev.keys}, nil
	}
	l := &loader{s: s, root: root, prev: prev, next: &content{manifest: *m}}
	if prev != nil && prev.Bits != m.Bits {
		l.all = true
	}
	if err := l.run(ctx); err != nil {
		return nil, fmt.Errorf("read version %d: %w", n, err)
	}
	return l.next, nil
}

// withinLimit returns an error for a version with more than limit bytes.
func withinLimit(n int64, count int, size, limit int64) error {
	if limit > 0 && size > limit {
		return fmt.Errorf("version %d: %w", n, tooLarge(size, count, "keys", limit))
	}
	return nil
}

// loader reads one version.
type loader struct {
	s    *session.Session
	root string
	prev *content // nil: none
	all  bool     // the number of buckets differs from prev: read all of them
	next *content

	differ []int // buckets to be read
}

func (l *loader) run(ctx context.Context) error {
	l.next.lists = make([][]entry, len(l.next.buckets))
	for i, sum := range l.next.buckets {
		if l.prev != nil && !l.all && l.prev.buckets[i] == sum {
			l.next.lists[i] = l.prev.lists[i]
			continue
		}
		l.differ = append(l.differ, i)
	}
	if err := l.readBuckets(ctx); err != nil {
		return err
	}
	if err := l.next.checkHeader(); err != nil {
		return err
	}
	values, err := l.readValues(ctx)
	if err != nil {
		return err
	}
	return l.build(values)
}

// checkHeader compares the header with the buckets before any value is read. So a
// false header cannot make us allocate memory.
func (c *content) checkHeader() error {
	count, size := 0, int64(0)
	for _, list := range c.lists {
		count += len(list)
		for _, e := range list {
			size += e.size
		}
	}
	switch {
	case count != c.Count || size != c.Size:
		return fmt.Errorf("its buckets list %d keys of %d bytes, its header says %d of %d: %w", count, size, c.Count, c.Size, errManifest)
	case count > MaxKeys:
		return fmt.Errorf("has %d keys, at most %d are allowed: %w", count, MaxKeys, ErrBounds)
	}
	return nil
}

// readBuckets reads the lists of the buckets that differ.
func (l *loader) readBuckets(ctx context.Context) error {
	for chunk := range slices.Chunk(l.differ, readBuckets) {
		sums := make([]digest, len(chunk))
		for i, n := range chunk {
			sums[i] = l.next.buckets[n]
		}
		objects, err := readObjectsOf(ctx, l.s, l.root, sums)
		if err != nil {
			return err
		}
		for i, n := range chunk {
			if l.next.lists[n], err = decodeBucket(objects[sums[i]], n, l.next.Bits); err != nil {
				return err
			}
		}
	}
	return nil
}

// readValues returns the values of the buckets that differ, by digest.
func (l *loader) readValues(ctx context.Context) (map[digest][]byte, error) {
	old := l.differ
	if l.all {
		old = make([]int, len(l.prev.lists))
		for i := range old {
			old[i] = i
		}
	}
	have := l.prev.values(old)
	var batch []digest
	size := int64(0)
	flush := func() error {
		objects, err := readObjectsOf(ctx, l.s, l.root, batch)
		maps.Copy(have, objects)
		batch, size = batch[:0], 0
		return err
	}
	for _, n := range l.differ {
		for _, e := range l.next.lists[n] {
			if _, ok := have[e.sum]; ok {
				continue
			}
			if e.kind == kindParts {
				value, err := l.readParts(ctx, e)
				if err != nil {
					return nil, err
				}
				have[e.sum] = value
				continue
			}
			if len(batch) > 0 && (size+e.size > readBytes || len(batch) == readObjects) {
				if err := flush(); err != nil {
					return nil, err
				}
			}
			have[e.sum] = nil
			batch = append(batch, e.sum)
			size += e.size
		}
	}
	return have, flush()
}

// readParts reads a value that is stored in parts, one request each.
func (l *loader) readParts(ctx context.Context, e entry) ([]byte, error) {
	list, err := readObjectsOf(ctx, l.s, l.root, []digest{e.sum})
	if err != nil {
		return nil, err
	}
	parts, err := decodeParts(list[e.sum])
	if err != nil {
		return nil, fmt.Errorf("value of %q: %w", e.key, err)
	}
	value := make([]byte, 0, e.size)
	for _, sum := range parts {
		part, err := readObjectsOf(ctx, l.s, l.root, []digest{sum})
		if err != nil {
			return nil, err
		}
		value = append(value, part[sum]...)
	}
	return value, nil
}

// build makes the tree of keys. It shares unchanged parts with prev.
func (l *loader) build(values map[digest][]byte) error {
	var keys *view.Keys
	if l.prev != nil && !l.all {
		keys = l.prev.keys
	}
	edit := keys.Edit()
	for _, n := range l.differ {
		var old []entry
		if l.prev != nil && !l.all {
			old = l.prev.lists[n]
		}
		was := make(map[string]digest, len(old))
		for _, e := range old {
			was[e.key] = e.sum
		}
		for _, e := range l.next.lists[n] {
			value := values[e.sum]
			if int64(len(value)) != e.size {
				return fmt.Errorf("value of %q has %d bytes, its bucket says %d: %w", e.key, len(value), e.size, ErrDigest)
			}
			if sum, ok := was[e.key]; !ok || sum != e.sum {
				edit.Set(e.key, view.Key{Value: value})
			}
			delete(was, e.key)
		}
		for key := range was {
			edit.Delete(key)
		}
	}
	l.next.keys = edit.Done()
	return nil
}

// readObjectsOf reads and verifies objects. The empty object is never stored.
func readObjectsOf(ctx context.Context, s *session.Session, root string, sums []digest) (map[digest][]byte, error) {
	objects := make(map[digest][]byte, len(sums))
	var paths []string
	var asked []digest
	for _, sum := range sums {
		if _, ok := objects[sum]; ok {
			continue
		}
		objects[sum] = nil
		if sum != digestOf(nil) {
			paths = append(paths, objectPath(root, sum))
			asked = append(asked, sum)
		}
	}
	if len(paths) == 0 {
		return objects, nil
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode):
			return nil, fmt.Errorf("object %s: %w", asked[i], errGone)
		case r.Err != nil:
			return nil, fmt.Errorf("read object %s: %w", asked[i], r.Err)
		}
		if err := verify(asked[i], r.Data); err != nil {
			return nil, err
		}
		objects[asked[i]] = slices.Clone(r.Data) // A slice of the reply would keep the whole buffer.
	}
	return objects, nil
}
