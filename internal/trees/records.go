// Package trees has how a config tree is stored in ZooKeeper: its paths and records,
// digests, versions, and reads of what is stored. Package config follows and reads with
// it; package fleet publishes with it.
package trees

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"github.com/zkagent/zkagent/session"
)

// Header is the JSON line at the head of a version's znode.
type Header struct {
	Format     int       `json:"zkagent"`
	Parent     int64     `json:"parent"`
	RollbackOf int64     `json:"rollback_of,omitempty"`
	Bits       int       `json:"bits"`
	Count      int       `json:"count"`
	Size       int64     `json:"size"`
	Author     string    `json:"author,omitempty"`
	Host       string    `json:"host,omitempty"`
	Message    string    `json:"message,omitempty"`
	Time       time.Time `json:"time"`
	Digest     string    `json:"digest"`
	Dry        bool      `json:"dry,omitempty"` // of a dry run: it is never used, and not kept
	// ID is a random id of the writer's attempt: after a lost reply the writer
	// finds its own znode by it.
	ID string `json:"id"`
}

// Manifest is a whole version: what its znode holds.
type Manifest struct {
	Header
	Number  int64
	Sum     Digest
	Buckets []Digest
}

// Bucket returns bucket n of the version.
func (m *Manifest) Bucket(n int) Bucket { return Bucket{m.Buckets[n], n, m.Bits} }

// BucketOf returns the bucket of a key.
func (m *Manifest) BucketOf(key string) Bucket { return m.Bucket(BucketOf(key, m.Bits)) }

// ErrManifest means that a version's znode is no record of a version.
var ErrManifest = errors.New("malformed version")

// maxBits bounds what a manifest may claim: 2^16 buckets.
const maxBits = 16

// Encode returns the data of the version's znode: the header as one line of
// JSON, a newline, the bucket digests.
func (m *Manifest) Encode() []byte {
	m.Format, m.Digest = recordFormat, m.Sum.String()
	data := append(encode(m.Header), '\n')
	for i := range m.Buckets {
		data = append(data, m.Buckets[i][:]...)
	}
	return data
}

// DecodeManifest decodes and verifies the data of a version's znode.
func DecodeManifest(number int64, data []byte) (*Manifest, error) {
	line, rest, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return nil, fmt.Errorf("version %d: no header: %w", number, ErrManifest)
	}
	m := &Manifest{Number: number}
	if err := json.Unmarshal(line, &m.Header); err != nil {
		return nil, fmt.Errorf("version %d: decode header: %w: %w", number, ErrManifest, err)
	}
	if m.Format != recordFormat {
		return nil, fmt.Errorf("version %d has format %d, this program knows %d: %w", number, m.Format, recordFormat, ErrFormat)
	}
	const size = len(Digest{})
	if m.Bits < 0 || m.Bits > maxBits || len(rest) != size<<m.Bits {
		return nil, fmt.Errorf("version %d: %d bytes of bucket digests for %d bits: %w", number, len(rest), m.Bits, ErrManifest)
	}
	for chunk := range slices.Chunk(rest, size) {
		m.Buckets = append(m.Buckets, Digest(chunk))
	}
	var err error
	if m.Sum, err = ParseDigest(m.Digest); err != nil {
		return nil, fmt.Errorf("version %d: %w: %w", number, ErrManifest, err)
	}
	if got := TreeDigest(m.Bits, m.Buckets); got != m.Sum {
		return nil, fmt.Errorf("version %d says %s, its buckets are %s: %w", number, m.Sum, got, ErrDigest)
	}
	return m, nil
}

// ParseVersionName returns the number in the name of a version's znode; false for any
// other name.
func ParseVersionName(name string) (int64, bool) {
	if len(name) != 10 || strings.Trim(name, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil && n > 0
}

// recordFormat is the format number of every JSON record of this package.
const recordFormat = 1

// ErrFormat is matched by errors about a record of a later, unknown format.
var ErrFormat = errors.New("unknown format")

// Ready is the data of the ready znode of a versioned tree.
type Ready struct {
	// Format is 1. It distinguishes the ready of a versioned tree from that of a
	// flat one.
	Format int `json:"zkagent"`
	// Version is the version in use.
	Version int64 `json:"version"`
	// Digest is the digest of the whole version, "sha256:<hex>".
	Digest string `json:"digest"`
	// Previous is the version that was in use before; 0 for the first one.
	Previous int64 `json:"previous,omitempty"`
	// Rollout names the rollout that activates the version, if there is one.
	Rollout string `json:"rollout,omitempty"`
	// Hosts is the number of subscribers when the version came into use. They
	// spread their reports over a time that grows with it.
	Hosts int `json:"hosts,omitempty"`
	// Delta is the difference to the version before. It is nil when it is too
	// large, or when not all readers of ready may read the contents.
	Delta *Delta `json:"delta,omitempty"`
}

// Encode returns the record as it is stored.
func (r Ready) Encode() []byte {
	r.Format = recordFormat
	return encode(r)
}

func encode(record any) []byte {
	data, err := json.Marshal(record)
	if err != nil { // A struct of numbers, strings and the present time always encodes.
		panic(err)
	}
	return data
}

// ErrReady says that ready is a damaged record of a versioned tree.
var ErrReady = errors.New("decode ready")

// ParseReady decodes the data of a ready znode. The second result is false when
// the data belongs to a flat tree, whose ready is empty or holds anything else.
func ParseReady(data []byte) (Ready, bool, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return Ready{}, false, nil
	}
	var probe struct {
		Format *int `json:"zkagent"`
	}
	err := json.Unmarshal(data, &probe)
	if err != nil && !json.Valid(data) && bytes.Contains(data, []byte(`"zkagent"`)) {
		return Ready{}, true, fmt.Errorf("%w: %w", ErrReady, err) // a damaged record of ours
	}
	if err != nil || probe.Format == nil {
		return Ready{}, false, nil //nolint:nilerr // what is not our record is a flat tree's own data
	}
	if *probe.Format != recordFormat {
		return Ready{}, true, fmt.Errorf("ready has format %d, this program knows %d: %w", *probe.Format, recordFormat, ErrFormat)
	}
	var r Ready
	if err := json.Unmarshal(data, &r); err != nil {
		return Ready{}, true, fmt.Errorf("%w: %w", ErrReady, err)
	}
	if _, err := ParseDigest(r.Digest); err != nil {
		return Ready{}, true, fmt.Errorf("%w: %w", ErrReady, err)
	}
	if r.Version <= 0 {
		return Ready{}, true, fmt.Errorf("%w: version %d is not positive", ErrReady, r.Version)
	}
	return r, true, nil
}

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

// Layouts of a config tree.
const (
	LayoutAuto      = "auto"
	LayoutFlat      = "flat"
	LayoutVersioned = "versioned"
	LayoutPlain     = "plain"
	LayoutLeaves    = "leaves"
)

// First path elements that are never keys.
const (
	ElemReady       = "ready"
	ElemVersions    = "versions"
	elemObjects     = "objects"
	elemSubscribers = "subscribers"
	elemRollouts    = "rollouts"
	ElemFreeze      = "freeze"
)

// Bounds on what may be published. Package config exports the first three.
const (
	MaxValue     = 900_000
	MaxKeys      = 100_000
	MaxKeyLength = 2048

	// MaxObject is the largest object in one znode: with path and header it
	// must stay below the server's default limit of 1,048,575 bytes a request.
	MaxObject = MaxValue
	// MaxForcedValue is the largest value in parts.
	MaxForcedValue = 64 << 20
)

// TooLarge returns the error of a tree that exceeds the limit.
func TooLarge(bytes int64, count int, what string, limit int64) error {
	const mib = 1 << 20
	return fmt.Errorf("the tree has %.1f MiB in %d %s, %.1f MiB more than max_bytes allows (%.1f MiB); the last good tree stays in use: %w",
		float64(bytes)/mib, count, what, float64(bytes-limit)/mib, float64(limit)/mib, ErrBounds)
}

// Errors that package config exports, with their meaning.
var (
	ErrNotReady  = errors.New("nothing is published")
	ErrBounds    = errors.New("over the limit")
	ErrNoVersion = errors.New("no such version")
	ErrDamaged   = errors.New("the stored data is damaged")
)

// Reserved returns the first path elements that are never keys.
func Reserved() []string {
	return []string{ElemReady, ElemVersions, elemObjects, elemSubscribers, elemRollouts, ElemFreeze}
}

// IsReserved reports whether a path relative to the root belongs to the
// protocol and not to the keys.
func IsReserved(key string) bool {
	first, _, _ := strings.Cut(key, "/")
	return slices.Contains(Reserved(), first)
}

// ValidateKey returns an error for an invalid key. A key is a path relative to the
// root, must be a valid znode path, and must not be reserved.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return errors.New("key is empty")
	case len(key) > MaxKeyLength:
		return fmt.Errorf("key %.40q... has %d bytes, at most %d are allowed", key, len(key), MaxKeyLength)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q is not UTF-8", key)
	case strings.HasPrefix(key, "/") || path.Clean(key) != key || key == "." || strings.HasPrefix(key, "../") || key == "..":
		return fmt.Errorf("key %q is not a clean relative path", key)
	case IsReserved(key):
		first, _, _ := strings.Cut(key, "/")
		return fmt.Errorf("key %q: %q is reserved", key, first)
	}
	if err := session.ValidatePath("/" + key); err != nil {
		return fmt.Errorf("key %q: %s", key, err.Error()) // the caller did not type a path
	}
	return nil
}

// ReadyPath is the znode that names the version in use.
func ReadyPath(root string) string { return session.JoinPath(root, ElemReady) }

// VersionsPath is where the versions of a tree are.
func VersionsPath(root string) string { return root + "/" + ElemVersions }

// VersionPath is the znode of a version.
func VersionPath(root string, n int64) string { return VersionsPath(root) + fmt.Sprintf("/%010d", n) }

// ObjectsPath is where the contents of versions are.
func ObjectsPath(root string) string { return root + "/" + elemObjects }

// RolloutsPath is where the rollouts of a tree are.
func RolloutsPath(root string) string { return session.JoinPath(root, elemRollouts) }

// FreezePath exists while the tree is frozen.
func FreezePath(root string) string { return root + "/" + ElemFreeze }

// AllErrors joins a list of errors; nil when the list is empty. Several errors print one
// per line.
func AllErrors(errs *multierror.Error) error {
	if errs == nil {
		return nil
	}
	errs.ErrorFormat = func(list []error) string {
		if len(list) == 1 {
			return list[0].Error()
		}
		lines := []string{fmt.Sprintf("%d errors:", len(list))}
		for _, err := range list {
			lines = append(lines, "  "+strings.ReplaceAll(err.Error(), "\n", "\n  "))
		}
		return strings.Join(lines, "\n")
	}
	return errs.ErrorOrNil()
}
