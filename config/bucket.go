package config

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// keysPerBucket is the average size up to which buckets are filled.
const keysPerBucket = 64

// Kinds of entries: the digest names the value itself, or a list of the digests
// of its parts, when the value is larger than a request.
const (
	kindWhole = 0
	kindParts = 1
)

// entry is one key as a bucket lists it.
type entry struct {
	key  string
	size int64
	kind byte
	sum  digest
}

var errBucket = errors.New("malformed bucket")

// encodeBucket returns the object of a bucket. For each key, in bytewise order:
// length of the key (uvarint), key, size of the value (uvarint), kind (a byte),
// digest (32 bytes).
func encodeBucket(entries []entry) []byte {
	sortBucket(entries)
	var buf []byte
	for i := range entries {
		buf = entries[i].append(buf)
	}
	return buf
}

func sortBucket(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
}

func (e *entry) append(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(e.key)))
	buf = append(buf, e.key...)
	buf = binary.AppendUvarint(buf, uint64(e.size)) //nolint:gosec // a length is never negative
	buf = append(buf, e.kind)
	return append(buf, e.sum[:]...)
}

// bucketDigest returns the digest of the object of a bucket whose entries are in
// order.
func bucketDigest(entries []entry) digest {
	h := sha256.New()
	var buf []byte
	for i := range entries {
		buf = entries[i].append(buf[:0])
		h.Write(buf)
	}
	return digest(h.Sum(nil))
}

// decodeBucket is the inverse of encodeBucket. The data is untrusted, so it checks
// that keys are in order and that each belongs to bucket n.
func decodeBucket(data []byte, n, bits int) ([]entry, error) {
	var entries []entry
	last := ""
	for len(data) > 0 {
		e, rest, err := decodeEntry(data)
		if err != nil {
			return nil, fmt.Errorf("bucket %d: %w", n, err)
		}
		if e.key <= last {
			return nil, fmt.Errorf("bucket %d: key %q is not after %q: %w", n, e.key, last, errBucket)
		}
		if bucketOf(e.key, bits) != n {
			return nil, fmt.Errorf("bucket %d: key %q belongs into another: %w", n, e.key, errBucket)
		}
		if err := ValidateKey(e.key); err != nil {
			return nil, fmt.Errorf("bucket %d: %w: %w", n, errBucket, err)
		}
		last = e.key
		data = rest
		entries = append(entries, e)
	}
	return entries, nil
}

// decodeEntry decodes the first entry of data and returns the rest.
func decodeEntry(data []byte) (entry, []byte, error) {
	var e entry
	n, w := binary.Uvarint(data)
	if w <= 0 || n > uint64(len(data)-w) { //nolint:gosec // Uvarint read w bytes of data
		return e, nil, fmt.Errorf("key is cut off: %w", errBucket)
	}
	e.key, data = string(data[w:w+int(n)]), data[w+int(n):] //nolint:gosec // bounded by len(data)
	size, w := binary.Uvarint(data)
	if w <= 0 || size > maxForcedValue || len(data) < w+1+len(e.sum) {
		return e, nil, fmt.Errorf("entry of %q is cut off: %w", e.key, errBucket)
	}
	e.size, e.kind = int64(size), data[w]
	if e.kind != kindWhole && e.kind != kindParts {
		return e, nil, fmt.Errorf("entry of %q is of unknown kind %d: %w", e.key, e.kind, errBucket)
	}
	copy(e.sum[:], data[w+1:])
	return e, data[w+1+len(e.sum):], nil
}

// decodeParts decodes the list of the digests of a split value.
func decodeParts(data []byte) ([]digest, error) {
	const size = len(digest{})
	if len(data) == 0 || len(data)%size != 0 || len(data)/size > maxForcedValue/maxObject+1 {
		return nil, fmt.Errorf("list of parts has %d bytes: %w", len(data), errBucket)
	}
	parts := make([]digest, 0, len(data)/size)
	for chunk := range slices.Chunk(data, size) {
		parts = append(parts, digest(chunk))
	}
	return parts, nil
}
