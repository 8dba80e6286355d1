package config

import (
	"cmp"
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
	r, _, err := trees.ReadReady(ctx, session.Usable(s, root), root)
	if err != nil && !errors.Is(err, ErrNotReady) && !errors.Is(err, ErrDamaged) {
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

// Origin names the version that gave a key its current value.
type Origin struct {
	// Version set or deleted the key. Its Number is 0 when Before is set, and for a
	// key that never existed.
	Version Version `json:"version"`
	// Before is the oldest kept version that already has the value, when the
	// version that set it is no longer kept. It is 0 when Version is known.
	Before int64 `json:"before,omitempty"`
}

// Origins finds for keys of version n the versions that set them. It goes back
// through the kept versions that were in use. A missing key has an origin, too: the
// version that deleted it.
//
// It reads the kept versions once, and only those of their buckets that hold the
// keys and differ from the next version. It reads no values.
func Origins(ctx context.Context, s *session.Session, root string, n int64, keys []string) (map[string]Origin, error) {
	s = session.Usable(s, root)
	manifests, err := trees.ReadManifests(ctx, s, root)
	if err != nil {
		return nil, err
	}
	line := lineage(manifests, n)
	if len(line) == 0 {
		return nil, trees.NoVersionError(n)
	}
	buckets, err := readBucketsOf(ctx, s, root, line, keys)
	if err != nil {
		return nil, err
	}
	origins := make(map[string]Origin, len(keys))
	for _, key := range keys {
		o := Origin{Before: line[len(line)-1].Number}
		for i := range len(line) - 1 {
			if buckets.find(line[i], key) != buckets.find(line[i+1], key) {
				o = Origin{Version: describe(line[i])}
				break
			}
		}
		if last := line[len(line)-1]; o.Before > 0 && last.Parent == 0 { // It is the first of the tree.
			o = Origin{}
			if buckets.find(last, key) != (trees.Digest{}) {
				o.Version = describe(last)
			}
		}
		origins[key] = o
	}
	return origins, nil
}

// lineage returns version n and those that were in use before it, latest first.
func lineage(manifests []*trees.Manifest, n int64) []*trees.Manifest {
	var line []*trees.Manifest
	for {
		i, ok := slices.BinarySearchFunc(manifests, n, func(m *trees.Manifest, n int64) int { return cmp.Compare(m.Number, n) })
		if !ok {
			return line
		}
		line = append(line, manifests[i])
		if manifests[i].Parent >= n { // Otherwise the loop would not end.
			return line
		}
		n = manifests[i].Parent
	}
}

// bucketLists are the lists of buckets, by digest of the object.
type bucketLists map[trees.Digest][]trees.Entry

func readBucketsOf(ctx context.Context, s *session.Session, root string, line []*trees.Manifest, keys []string) (bucketLists, error) {
	lists := bucketLists{}
	var buckets []trees.Bucket
	for _, m := range line {
		for _, key := range keys {
			b := m.BucketOf(key)
			if _, ok := lists[b.Sum]; !ok {
				lists[b.Sum] = nil
				buckets = append(buckets, b)
			}
		}
	}
	read, err := trees.ReadBuckets(ctx, s, root, buckets)
	for i, list := range read {
		lists[buckets[i].Sum] = list
	}
	return lists, err
}

// find returns the digest of a key's value in a version; zero: no such key.
func (b bucketLists) find(m *trees.Manifest, key string) trees.Digest {
	list := b[m.BucketOf(key).Sum]
	if i, ok := trees.FindEntry(list, key); ok {
		return list[i].Sum
	}
	return trees.Digest{}
}
