package trees

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

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
	var lists [][]Entry
	for chunk := range slices.Chunk(buckets, bucketsOnce) {
		sums := make([]Digest, len(chunk))
		for i, b := range chunk {
			sums[i] = b.Sum
		}
		objects, err := ReadObjectsOf(ctx, s, root, sums)
		if err != nil {
			return nil, err
		}
		for _, b := range chunk {
			list, err := DecodeBucket(objects[b.Sum], b.N, b.Bits)
			if err != nil {
				return nil, err
			}
			lists = append(lists, list)
		}
	}
	return lists, nil
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
