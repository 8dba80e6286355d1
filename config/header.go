package config

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

// Version describes one immutable version of a versioned tree.
type Version struct {
	// Number is the version number: the sequence of its znode.
	Number int64 `json:"version"`
	// Parent is the version that was in use when this one was written; 0 when
	// it is the first.
	Parent int64 `json:"parent"`
	// RollbackOf is the version whose content this one brings back; 0 for none.
	RollbackOf int64 `json:"rollback_of,omitempty"`
	// Count is the number of keys, Size the bytes of all values.
	Count int   `json:"count"`
	Size  int64 `json:"size"`
	// Author, Host and Message come from the publisher.
	Author  string `json:"author,omitempty"`
	Host    string `json:"host,omitempty"`
	Message string `json:"message,omitempty"`
	// Time is the publisher's clock, in UTC.
	Time time.Time `json:"time"`
	// Digest is the digest of the whole: equal contents have equal digests.
	Digest string `json:"digest"`
	// Active says that ready names this version.
	Active bool `json:"active"`
	// Used says that this version is or was in use: ready names it, or a kept later
	// version has it as its parent.
	Used bool `json:"used"`
}

// header is the JSON line at the head of a version's znode.
type header struct {
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

// manifest is a whole version: what its znode holds.
type manifest struct {
	header
	number  int64
	sum     digest
	buckets []digest
}

var errManifest = errors.New("malformed version")

// maxBits bounds what a manifest may claim: 2^16 buckets.
const maxBits = 16

// encode returns the data of the version's znode: the header as one line of
// JSON, a newline, the bucket digests.
func (m *manifest) encode() ([]byte, error) {
	m.Format, m.Digest = recordFormat, m.sum.String()
	data, err := json.Marshal(m.header)
	if err != nil {
		return nil, fmt.Errorf("encode version: %w", err)
	}
	data = append(data, '\n')
	for i := range m.buckets {
		data = append(data, m.buckets[i][:]...)
	}
	return data, nil
}

// decodeManifest decodes and verifies the data of a version's znode.
func decodeManifest(number int64, data []byte) (*manifest, error) {
	line, rest, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return nil, fmt.Errorf("version %d: no header: %w", number, errManifest)
	}
	m := &manifest{number: number}
	if err := json.Unmarshal(line, &m.header); err != nil {
		return nil, fmt.Errorf("version %d: decode header: %w: %w", number, errManifest, err)
	}
	if m.Format != recordFormat {
		return nil, fmt.Errorf("version %d has format %d, this program knows %d: %w", number, m.Format, recordFormat, ErrFormat)
	}
	const size = len(digest{})
	if m.Bits < 0 || m.Bits > maxBits || len(rest) != size<<m.Bits {
		return nil, fmt.Errorf("version %d: %d bytes of bucket digests for %d bits: %w", number, len(rest), m.Bits, errManifest)
	}
	for chunk := range slices.Chunk(rest, size) {
		m.buckets = append(m.buckets, digest(chunk))
	}
	var err error
	if m.sum, err = parseDigest(m.Digest); err != nil {
		return nil, fmt.Errorf("version %d: %w: %w", number, errManifest, err)
	}
	if got := treeDigest(m.Bits, m.buckets); got != m.sum {
		return nil, fmt.Errorf("version %d says %s, its buckets are %s: %w", number, m.sum, got, ErrDigest)
	}
	return m, nil
}

// describe returns the version as users see it.
func (m *manifest) describe() Version {
	return Version{
		Number: m.number, Parent: m.Parent, RollbackOf: m.RollbackOf, Count: m.Count, Size: m.Size,
		Author: m.Author, Host: m.Host, Message: m.Message, Time: m.Time, Digest: m.Digest,
	}
}

// versionName is the name of a version's znode.
func versionName(n int64) string { return fmt.Sprintf("%010d", n) }

// versionPath is the path of a version's znode.
func versionPath(root string, n int64) string {
	return root + "/" + elemVersions + "/" + versionName(n)
}

// parseVersionName is the inverse of versionName; false for any other name.
func parseVersionName(name string) (int64, bool) {
	if len(name) != 10 || strings.Trim(name, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil && n > 0
}
