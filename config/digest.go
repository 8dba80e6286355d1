package config

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrDigest is matched by errors about content that does not match its digest.
var ErrDigest = errors.New("digest does not match")

// digest is the SHA-256 of a content; it names the object that holds it.
type digest [sha256.Size]byte

const digestPrefix = "sha256:"

// String returns the digest as records spell it.
func (d digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// digestOf returns the digest of data.
func digestOf(data []byte) digest { return sha256.Sum256(data) }

// parseDigest decodes "sha256:<64 hex digits>".
func parseDigest(s string) (digest, error) {
	var d digest
	h, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(h) != hex.EncodedLen(len(d)) {
		return d, fmt.Errorf("%q is not a digest like %s<64 hex digits>", s, digestPrefix)
	}
	if _, err := hex.Decode(d[:], []byte(h)); err != nil {
		return d, fmt.Errorf("decode digest %q: %w", s, err)
	}
	return d, nil
}

// objectPath is where the object with the digest lies.
func objectPath(root string, d digest) string {
	h := hex.EncodeToString(d[:])
	return root + "/" + elemObjects + "/" + h[:2] + "/" + h
}

// verify returns an error when data does not match the digest.
func verify(d digest, data []byte) error {
	if got := digestOf(data); got != d {
		return fmt.Errorf("object %s holds %s: %w", d, got, ErrDigest)
	}
	return nil
}

// bucketOf is the bucket of a key in a tree of 2^bits buckets: the first bits
// of the key's SHA-256.
func bucketOf(key string, bits int) int {
	if bits == 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint32(sum[:4]) >> (32 - bits))
}

// bucketBits is the number of bits for a tree of that many keys: the least with
// at most keysPerBucket keys a bucket on average. It depends on nothing else,
// so that equal contents have equal digests.
func bucketBits(keys int) int {
	bits := 0
	for keys > keysPerBucket<<bits {
		bits++
	}
	return bits
}

// treeDigest is the digest of a whole version: that of its number of bits and
// of its bucket digests, in order.
func treeDigest(bits int, buckets []digest) digest {
	h := sha256.New()
	h.Write([]byte{byte(bits)}) //nolint:gosec // at most maxBits
	for i := range buckets {
		h.Write(buckets[i][:])
	}
	return digest(h.Sum(nil))
}
