package config

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
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

// describe is the version as users see it.
func describe(m *trees.Manifest) Version {
	return Version{
		Number: m.Number, Parent: m.Parent, RollbackOf: m.RollbackOf, Count: m.Count, Size: m.Size,
		Author: m.Author, Host: m.Host, Message: m.Message, Time: m.Time, Digest: m.Digest,
	}
}

// History returns the versions that are kept, latest first. A version that
// cannot be decoded is left out. The error matches [ErrNoVersion] when the tree
// is flat, which keeps none.
func History(ctx context.Context, s *session.Session, root string) ([]Version, error) {
	r, _, err := trees.ReadReady(ctx, s, root)
	if err != nil && !errors.Is(err, ErrNotReady) {
		return nil, err
	}
	manifests, err := trees.ReadManifests(ctx, s, root)
	if err != nil {
		return nil, err
	}
	used := map[int64]bool{r.Version: true, r.Previous: true}
	for _, m := range manifests {
		used[m.Parent] = true
	}
	list := make([]Version, 0, len(manifests))
	for _, m := range manifests {
		if m.Dry {
			continue
		}
		v := describe(m)
		v.Active, v.Used = v.Number == r.Version, used[v.Number]
		list = append(list, v)
	}
	slices.Reverse(list)
	return list, nil
}
