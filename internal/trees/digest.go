package trees

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

// Digest is the SHA-256 of a content; it names the object that holds it.
type Digest [sha256.Size]byte

// DigestPrefix begins each digest as records spell it.
const DigestPrefix = "sha256:"

// String returns the digest as records spell it.
func (d Digest) String() string { return DigestPrefix + hex.EncodeToString(d[:]) }

// DigestOf returns the digest of data.
func DigestOf(data []byte) Digest { return sha256.Sum256(data) }

// ParseDigest decodes "sha256:<64 hex digits>".
func ParseDigest(s string) (Digest, error) {
	var d Digest
	h, ok := strings.CutPrefix(s, DigestPrefix)
	if !ok || len(h) != hex.EncodedLen(len(d)) {
		return d, fmt.Errorf("%q is not a digest like %s<64 hex digits>", s, DigestPrefix)
	}
	if _, err := hex.Decode(d[:], []byte(h)); err != nil {
		return d, fmt.Errorf("decode digest %q: %w", s, err)
	}
	return d, nil
}

// ObjectPath is where the object with the digest lies.
func ObjectPath(root string, d Digest) string {
	h := hex.EncodeToString(d[:])
	return ObjectsPath(root) + "/" + h[:2] + "/" + h
}

// Verify returns an error when data does not match the digest.
func Verify(d Digest, data []byte) error {
	if got := DigestOf(data); got != d {
		return fmt.Errorf("object %s holds %s: %w", d, got, ErrDigest)
	}
	return nil
}

// BucketOf is the bucket of a key in a tree of 2^bits buckets: the first bits
// of the key's SHA-256.
func BucketOf(key string, bits int) int {
	if bits == 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint32(sum[:4]) >> (32 - bits))
}

// BucketBits is the number of bits for a tree of that many keys: the least with
// at most keysPerBucket keys a bucket on average. It depends on nothing else,
// so that equal contents have equal digests.
func BucketBits(keys int) int {
	bits := 0
	for keys > keysPerBucket<<bits {
		bits++
	}
	return bits
}

// TreeDigest is the digest of a whole version: that of its number of bits and
// of its bucket digests, in order.
func TreeDigest(bits int, buckets []Digest) Digest {
	h := sha256.New()
	h.Write([]byte{byte(bits)}) //nolint:gosec // at most maxBits
	for i := range buckets {
		h.Write(buckets[i][:])
	}
	return Digest(h.Sum(nil))
}
