package trees

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Bounds on what one request reads. Servers and clients limit replies, like
// requests, to about a megabyte.
const (
	readBytes   = 512 << 10
	bucketsOnce = 64
	readObjects = 512
)

// ErrGone says that a znode of a version does not exist. Garbage collection deleted
// it, so ready names another version by now.
var ErrGone = errors.New("version is gone")

// NoVersionError is the number of a version that does not exist or was deleted.
type NoVersionError int64

func (n NoVersionError) Error() string { return fmt.Sprintf("there is no version %d", int64(n)) }

// Is makes the error match ErrNoVersion and errGone.
func (n NoVersionError) Is(target error) bool { return target == ErrNoVersion || target == ErrGone }

// Content is a verified version in memory. The next load compares with it.
type Content struct {
	Manifest
	Lists [][]Entry // by bucket
	Keys  *view.Keys
}

// Tree returns the content as a tree.
func (c *Content) Tree(name, root string, r Ready, last int64) *view.Tree {
	return view.NewTree(view.Tree{
		Name: name, Path: root, Layout: LayoutVersioned, Generation: c.Number, Digest: c.Sum.String(),
		Previous: r.Previous, Rollout: r.Rollout, Last: last,
	}, c.Keys)
}

// RandomObject returns the digest of one of the objects of c, a bucket or a value, and
// false when it chose an empty bucket. What is empty is never stored.
func (c *Content) RandomObject() (Digest, bool) {
	i := rand.IntN(len(c.Buckets)) //nolint:gosec // It is no secret.
	sum := c.Buckets[i]
	if n := rand.IntN(len(c.Lists[i]) + 1); n > 0 && c.Lists[i][n-1].Size > 0 { //nolint:gosec // It is no secret.
		sum = c.Lists[i][n-1].Sum
	}
	return sum, sum != DigestOf(nil)
}

// LoadManifest reads the list of a version's buckets.
func LoadManifest(ctx context.Context, s *session.Session, root string, n int64) (*Manifest, error) {
	data, _, err := s.Get(ctx, VersionPath(root, n))
	if errors.Is(err, session.ErrNoNode) {
		return nil, NoVersionError(n)
	}
	if err != nil {
		return nil, fmt.Errorf("read version %d: %w", n, err)
	}
	return DecodeManifest(n, data)
}

// Load reads a version. With prev (may be nil) it reads only the buckets that
// differ, and of those only the new values. It returns an error for more than limit
// bytes; 0 means no limit.
func Load(ctx context.Context, s *session.Session, root string, n int64, prev *Content, limit int64) (*Content, error) {
	s = session.Usable(s, root)
	m, err := LoadManifest(ctx, s, root, n)
	if err != nil {
		return nil, err
	}
	if err = WithinLimit(n, m.Count, m.Size, limit); err != nil {
		return nil, err
	}
	if prev != nil && prev.Sum == m.Sum {
		m.Count, m.Size = prev.Count, prev.Size // which were counted
		return &Content{Manifest: *m, Lists: prev.Lists, Keys: prev.Keys}, nil
	}
	c := &Content{Manifest: *m, Lists: make([][]Entry, len(m.Buckets))}
	if err := c.load(ctx, s, root, prev); err != nil {
		return nil, fmt.Errorf("read version %d: %w", n, err)
	}
	return c, nil
}

// WithinLimit returns an error for a version with more than limit bytes.
func WithinLimit(n int64, count int, size, limit int64) error {
	if limit > 0 && size > limit {
		return fmt.Errorf("version %d: %w", n, TooLarge(size, count, "keys", limit))
	}
	return nil
}

// load reads the lists and values that prev (may be nil) does not have.
func (c *Content) load(ctx context.Context, s *session.Session, root string, prev *Content) error {
	base, have := prev, map[Digest][]byte{}
	if prev == nil || prev.Bits != c.Bits { // no bucket equals one of prev
		base = &Content{Manifest: Manifest{Buckets: make([]Digest, len(c.Buckets))}, Lists: make([][]Entry, len(c.Buckets))}
		for n := 0; prev != nil && n < len(prev.Lists); n++ {
			prev.addValues(have, n)
		}
	}
	var differ []Bucket
	for n, sum := range c.Buckets {
		if base == prev && base.Buckets[n] == sum {
			c.Lists[n] = base.Lists[n]
			continue
		}
		differ = append(differ, c.Bucket(n))
		base.addValues(have, n)
	}
	lists, err := ReadBuckets(ctx, s, root, differ)
	if err != nil {
		return err
	}
	for i, b := range differ {
		c.Lists[b.N] = lists[i]
	}
	if err := c.checkHeader(); err != nil {
		return err
	}
	if err := ReadValues(ctx, s, root, slices.Concat(lists...), have); err != nil {
		return err
	}
	return c.build(base, differ, have)
}

func (c *Content) addValues(values map[Digest][]byte, n int) {
	for _, e := range c.Lists[n] {
		if k, ok := c.Keys.Get(e.Key); ok {
			values[e.Sum] = k.Value
		}
	}
}

// checkHeader compares the header with the buckets before any value is read. So a
// false header cannot make us allocate memory.
func (c *Content) checkHeader() error {
	count, size := 0, int64(0)
	for _, list := range c.Lists {
		count += len(list)
		for _, e := range list {
			size += e.Size
		}
	}
	switch {
	case count != c.Count || size != c.Size:
		return fmt.Errorf("its buckets list %d keys of %d bytes, its header says %d of %d: %w", count, size, c.Count, c.Size, ErrManifest)
	case count > MaxKeys:
		return fmt.Errorf("has %d keys, at most %d are allowed: %w", count, MaxKeys, ErrBounds)
	}
	return nil
}

// ReadValues adds the values of entries to those that are there already.
func ReadValues(ctx context.Context, s *session.Session, root string, entries []Entry, have map[Digest][]byte) error {
	var batch []Digest
	size := int64(0)
	flush := func() error {
		objects, err := ReadObjectsOf(ctx, s, root, batch)
		maps.Copy(have, objects)
		batch, size = batch[:0], 0
		return err
	}
	for _, e := range entries {
		if _, ok := have[e.Sum]; ok {
			continue
		}
		if e.Kind == KindParts {
			value, err := readParts(ctx, s, root, e)
			if err != nil {
				return err
			}
			have[e.Sum] = value
			continue
		}
		if len(batch) > 0 && (size+e.Size > readBytes || len(batch) == readObjects) {
			if err := flush(); err != nil {
				return err
			}
		}
		have[e.Sum] = nil
		batch = append(batch, e.Sum)
		size += e.Size
	}
	return flush()
}

// readParts reads a value that is stored in parts, one request each.
func readParts(ctx context.Context, s *session.Session, root string, e Entry) ([]byte, error) {
	parts, err := ReadPartList(ctx, s, root, e)
	if err != nil {
		return nil, err
	}
	value := make([]byte, 0, e.Size)
	for _, sum := range parts {
		part, err := ReadObjectsOf(ctx, s, root, []Digest{sum})
		if err != nil {
			return nil, err
		}
		value = append(value, part[sum]...)
	}
	return value, nil
}

// build makes the tree of keys. It shares unchanged parts with base.
func (c *Content) build(base *Content, differ []Bucket, values map[Digest][]byte) error {
	edit := base.Keys.Edit()
	for _, b := range differ {
		was := make(map[string]Digest, len(base.Lists[b.N]))
		for _, e := range base.Lists[b.N] {
			was[e.Key] = e.Sum
		}
		for _, e := range c.Lists[b.N] {
			value := values[e.Sum]
			if int64(len(value)) != e.Size {
				return fmt.Errorf("value of %q has %d bytes, its bucket says %d: %w", e.Key, len(value), e.Size, ErrDigest)
			}
			if sum, ok := was[e.Key]; !ok || sum != e.Sum {
				edit.Set(e.Key, view.Key{Value: value})
			}
			delete(was, e.Key)
		}
		for key := range was {
			edit.Delete(key)
		}
	}
	c.Keys = edit.Done()
	return nil
}

// ReadObjectsOf reads and verifies objects. The empty object is never stored.
func ReadObjectsOf(ctx context.Context, s *session.Session, root string, sums []Digest) (map[Digest][]byte, error) {
	objects := make(map[Digest][]byte, len(sums))
	var paths []string
	var asked []Digest
	for _, sum := range sums {
		if _, ok := objects[sum]; ok {
			continue
		}
		objects[sum] = nil
		if sum != DigestOf(nil) {
			paths = append(paths, ObjectPath(root, sum))
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
			return nil, fmt.Errorf("object %s: %w", asked[i], ErrGone)
		case r.Err != nil:
			return nil, fmt.Errorf("read object %s: %w", asked[i], r.Err)
		}
		if err := Verify(asked[i], r.Data); err != nil {
			return nil, err
		}
		objects[asked[i]] = slices.Clone(r.Data) // A slice of the reply would keep the whole buffer.
	}
	return objects, nil
}

// ReadManifests returns the versions that are there, oldest first.
func ReadManifests(ctx context.Context, s *session.Session, root string) ([]*Manifest, error) {
	numbers, err := VersionNumbers(ctx, s, root)
	if err != nil {
		return nil, err
	}
	paths := lists.Map(numbers, func(n int64) string { return VersionPath(root, n) })
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("config %s: read versions: %w", root, err)
	}
	var list []*Manifest
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue
		}
		if r.Err != nil {
			return nil, fmt.Errorf("config %s: read version %d: %w", root, numbers[i], r.Err)
		}
		if m, err := DecodeManifest(numbers[i], r.Data); err == nil {
			list = append(list, m)
		}
	}
	return list, nil
}

// VersionNumbers returns the numbers of the versions that are there, sorted.
func VersionNumbers(ctx context.Context, s *session.Session, root string) ([]int64, error) {
	names, _, err := s.Children(ctx, root+"/"+ElemVersions)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("config %s: list versions: %w", root, err)
	}
	var numbers []int64
	for _, name := range names {
		if n, ok := ParseVersionName(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// The difference in ready.
//
// A host that holds the previous version learns a small change from its one read of
// ready. The difference is only a hint. The host applies it to the content with the
// digest From and computes the digest of the result. If that is not the digest in
// ready, the host reads the version instead.

// MaxDelta bounds the difference that a publish puts into ready, in bytes of
// its JSON.
const MaxDelta = 16 << 10

// Delta is the difference between two versions: from the one with the digest From
// to the one whose record contains the Delta.
type Delta struct {
	From string            `json:"from"`
	Set  map[string][]byte `json:"set,omitempty"`
	Del  []string          `json:"del,omitempty"`
}

// Fits reports whether the difference is not nil and takes at most so many bytes.
func (d *Delta) Fits(most int) bool {
	if d == nil {
		return false
	}
	size := 0
	for key, value := range d.Set { // An estimate first: most do not fit at all.
		size += len(key) + len(value)
	}
	if size > most {
		return false
	}
	data, err := json.Marshal(d)
	return err == nil && len(data) <= most
}

// Apply applies the difference to c and returns the result. It fails when the
// digest of the result is not want.
func (c *Content) Apply(d *Delta, number int64, want Digest) (*Content, error) {
	edit := c.Keys.Edit()
	touched := map[string]*Entry{}
	for _, key := range d.Del {
		if err := ValidateKey(key); err != nil {
			return nil, fmt.Errorf("difference: %w", err)
		}
		edit.Delete(key)
		touched[key] = nil
	}
	for key, value := range d.Set {
		if err := ValidateKey(key); err != nil {
			return nil, fmt.Errorf("difference: %w", err)
		}
		if len(value) > MaxObject {
			return nil, fmt.Errorf("difference: key %q: %w", key, ErrBounds)
		}
		edit.Set(key, view.Key{Value: value})
		touched[key] = &Entry{Key: key, Size: int64(len(value)), Sum: DigestOf(value)}
	}
	next := &Content{Keys: edit.Done()}
	next.Number = number
	if next.Count = next.Keys.Len(); next.Count > MaxKeys {
		return nil, fmt.Errorf("difference: %d keys: %w", next.Count, ErrBounds)
	}
	next.rebuild(c, touched)
	if next.Sum != want {
		return nil, fmt.Errorf("difference: makes %s of %s, %s is wanted: %w", next.Sum, c.Sum, want, ErrDigest)
	}
	next.Digest = next.Sum.String()
	return next, nil
}

// rebuild makes the buckets of c from those of prev: those of touched keys, or
// all when their number changes.
func (c *Content) rebuild(prev *Content, touched map[string]*Entry) {
	c.Bits, c.Size = BucketBits(c.Count), prev.Size
	dirty := map[int]bool{}
	if c.Bits == prev.Bits {
		c.Lists, c.Buckets = slices.Clone(prev.Lists), slices.Clone(prev.Buckets)
	} else {
		c.Lists, c.Buckets = make([][]Entry, 1<<c.Bits), make([]Digest, 1<<c.Bits)
		for _, list := range prev.Lists {
			for _, e := range list {
				n := BucketOf(e.Key, c.Bits)
				c.Lists[n] = append(c.Lists[n], e)
			}
		}
		for n := range c.Lists {
			dirty[n] = true
			sortBucket(c.Lists[n])
		}
	}
	for key, e := range touched {
		n := BucketOf(key, c.Bits)
		if !dirty[n] {
			dirty[n] = true
			c.Lists[n] = append(make([]Entry, 0, len(c.Lists[n])+1), c.Lists[n]...)
		}
		i, ok := FindEntry(c.Lists[n], key)
		if ok {
			c.Size -= c.Lists[n][i].Size
		}
		switch {
		case e == nil && ok:
			c.Lists[n] = slices.Delete(c.Lists[n], i, i+1)
		case e != nil && ok:
			c.Lists[n][i] = *e
		case e != nil:
			c.Lists[n] = slices.Insert(c.Lists[n], i, *e)
		}
		if e != nil {
			c.Size += e.Size
		}
	}
	for n := range dirty {
		c.Buckets[n] = bucketDigest(c.Lists[n])
	}
	c.Sum = TreeDigest(c.Bits, c.Buckets)
}

// keysPerBucket is the average size up to which buckets are filled.
const keysPerBucket = 64

// Kinds of entries: the digest names the value itself, or a list of the digests
// of its parts, when the value is larger than a request.
const (
	kindWhole = 0
	KindParts = 1
)

// Entry is one key as a bucket lists it.
type Entry struct {
	Key  string
	Size int64
	Kind byte
	Sum  Digest
}

// ErrBucket means that an object is no bucket of a version.
var ErrBucket = errors.New("malformed bucket")

// FindEntry finds a key in the list of its bucket.
func FindEntry(entries []Entry, key string) (int, bool) {
	return slices.BinarySearchFunc(entries, key, func(e Entry, key string) int { return strings.Compare(e.Key, key) })
}

// Bucket is one bucket of a version with 2^Bits buckets.
type Bucket struct {
	Sum     Digest
	N, Bits int
}

// ReadBuckets reads the lists of buckets.
func ReadBuckets(ctx context.Context, s *session.Session, root string, buckets []Bucket) ([][]Entry, error) {
	var read [][]Entry
	for chunk := range slices.Chunk(buckets, bucketsOnce) {
		objects, err := ReadObjectsOf(ctx, s, root, lists.Map(chunk, func(b Bucket) Digest { return b.Sum }))
		if err != nil {
			return nil, err
		}
		for _, b := range chunk {
			list, err := DecodeBucket(objects[b.Sum], b.N, b.Bits)
			if err != nil {
				return nil, err
			}
			read = append(read, list)
		}
	}
	return read, nil
}

// EncodeBucket returns the object of a bucket. For each key, in bytewise order:
// length of the key (uvarint), key, size of the value (uvarint), kind (a byte),
// digest (32 bytes).
func EncodeBucket(entries []Entry) []byte {
	sortBucket(entries)
	var buf []byte
	for i := range entries {
		buf = entries[i].append(buf)
	}
	return buf
}

func sortBucket(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
}

func (e *Entry) append(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(e.Key)))
	buf = append(buf, e.Key...)
	buf = binary.AppendUvarint(buf, uint64(e.Size)) //nolint:gosec // a length is never negative
	buf = append(buf, e.Kind)
	return append(buf, e.Sum[:]...)
}

// bucketDigest returns the digest of the object of a bucket whose entries are in
// order.
func bucketDigest(entries []Entry) Digest {
	h := sha256.New()
	var buf []byte
	for i := range entries {
		buf = entries[i].append(buf[:0])
		h.Write(buf)
	}
	return Digest(h.Sum(nil))
}

// DecodeBucket is the inverse of EncodeBucket. The data is untrusted, so it checks
// that keys are in order and that each belongs to bucket n.
func DecodeBucket(data []byte, n, bits int) ([]Entry, error) {
	var entries []Entry
	last := ""
	for len(data) > 0 {
		e, rest, err := decodeEntry(data)
		if err != nil {
			return nil, fmt.Errorf("bucket %d: %w", n, err)
		}
		if e.Key <= last {
			return nil, fmt.Errorf("bucket %d: key %q is not after %q: %w", n, e.Key, last, ErrBucket)
		}
		if BucketOf(e.Key, bits) != n {
			return nil, fmt.Errorf("bucket %d: key %q belongs into another: %w", n, e.Key, ErrBucket)
		}
		if err := ValidateKey(e.Key); err != nil {
			return nil, fmt.Errorf("bucket %d: %w: %w", n, ErrBucket, err)
		}
		last = e.Key
		data = rest
		entries = append(entries, e)
	}
	return entries, nil
}

func decodeEntry(data []byte) (Entry, []byte, error) {
	var e Entry
	n, w := binary.Uvarint(data)
	if w <= 0 || n > uint64(len(data)-w) { //nolint:gosec // Uvarint read w bytes of data
		return e, nil, fmt.Errorf("key is cut off: %w", ErrBucket)
	}
	e.Key, data = string(data[w:w+int(n)]), data[w+int(n):] //nolint:gosec // bounded by len(data)
	size, w := binary.Uvarint(data)
	if w <= 0 || size > MaxForcedValue || len(data) < w+1+len(e.Sum) {
		return e, nil, fmt.Errorf("entry of %q is cut off: %w", e.Key, ErrBucket)
	}
	e.Size, e.Kind = int64(size), data[w]
	if e.Kind != kindWhole && e.Kind != KindParts {
		return e, nil, fmt.Errorf("entry of %q is of unknown kind %d: %w", e.Key, e.Kind, ErrBucket)
	}
	copy(e.Sum[:], data[w+1:])
	return e, data[w+1+len(e.Sum):], nil
}

// ReadPartList reads the digests of the parts of a split value.
func ReadPartList(ctx context.Context, s *session.Session, root string, e Entry) ([]Digest, error) {
	const size = len(Digest{})
	objects, err := ReadObjectsOf(ctx, s, root, []Digest{e.Sum})
	if err != nil {
		return nil, err
	}
	data := objects[e.Sum]
	if len(data) == 0 || len(data)%size != 0 || len(data)/size > MaxForcedValue/MaxObject+1 {
		return nil, fmt.Errorf("value of %q: list of parts has %d bytes: %w", e.Key, len(data), ErrBucket)
	}
	parts := make([]Digest, 0, len(data)/size)
	for chunk := range slices.Chunk(data, size) {
		parts = append(parts, Digest(chunk))
	}
	return parts, nil
}
