package trees

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
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
func (m *Manifest) Encode() ([]byte, error) {
	m.Format, m.Digest = recordFormat, m.Sum.String()
	data, err := json.Marshal(m.Header)
	if err != nil {
		return nil, fmt.Errorf("encode version: %w", err)
	}
	data = append(data, '\n')
	for i := range m.Buckets {
		data = append(data, m.Buckets[i][:]...)
	}
	return data, nil
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
