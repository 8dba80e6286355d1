package trees

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

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
	data, err := json.Marshal(r)
	if err != nil { // A struct of numbers and strings always encodes.
		panic(err)
	}
	return data
}

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
		return Ready{}, true, fmt.Errorf("decode ready: %w", err) // a damaged record of ours
	}
	if err != nil || probe.Format == nil {
		return Ready{}, false, nil //nolint:nilerr // what is not our record is a flat tree's own data
	}
	if *probe.Format != recordFormat {
		return Ready{}, true, fmt.Errorf("ready has format %d, this program knows %d: %w", *probe.Format, recordFormat, ErrFormat)
	}
	var r Ready
	if err := json.Unmarshal(data, &r); err != nil {
		return Ready{}, true, fmt.Errorf("decode ready: %w", err)
	}
	if _, err := ParseDigest(r.Digest); err != nil {
		return Ready{}, true, fmt.Errorf("decode ready: %w", err)
	}
	if r.Version <= 0 {
		return Ready{}, true, fmt.Errorf("decode ready: version %d is not positive", r.Version)
	}
	return r, true, nil
}
