package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// lookupTries bounds how often a lookup is repeated because the tree changed during it.
const lookupTries = 20

// Lookup reads one key of the tree in use, and the generation of that tree. It
// costs a few requests for a tree of any size, so it can serve as a name service. A
// missing key or tree is an error that matches [ErrNoKey] or [ErrNotReady].
func Lookup(ctx context.Context, s *session.Session, root, key string) ([]byte, int64, error) {
	if err := ValidateKey(key); err != nil {
		return nil, 0, fmt.Errorf("look up: %w", err)
	}
	for range lookupTries {
		value, generation, again, err := lookup(ctx, s, root, key)
		if err != nil {
			return nil, generation, fmt.Errorf("look up %s in config %s: %w", key, root, err)
		}
		if !again {
			return value, generation, nil
		}
	}
	return nil, 0, fmt.Errorf("look up %s in config %s: %w: it changed during each of %d readings", key, root, ErrNotReady, lookupTries)
}

// lookup reads the value and its generation once, and reports whether the tree
// changed meanwhile.
func lookup(ctx context.Context, s *session.Session, root, key string) ([]byte, int64, bool, error) {
	data, st, err := s.Get(ctx, trees.ReadyPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, 0, false, ErrNotReady
	}
	if err != nil {
		return nil, 0, false, err
	}
	r, versioned, err := trees.ParseReady(data)
	if err != nil {
		return nil, 0, false, err
	}
	if versioned {
		value, keyErr := lookupVersion(ctx, s, root, r.Version, key)
		if errors.Is(keyErr, trees.ErrGone) {
			now, _, readErr := trees.ReadReady(ctx, s, root)
			if readErr == nil && now.Version != r.Version {
				return nil, 0, true, nil
			}
		}
		return value, r.Version, false, keyErr
	}
	value, kst, err := s.Get(ctx, root+"/"+key)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, 0, false, err
	}
	after, ok, existsErr := s.Exists(ctx, trees.ReadyPath(root))
	switch {
	case existsErr != nil:
		return nil, 0, false, existsErr
	case !ok || after.Czxid != st.Czxid:
		return nil, 0, true, nil
	case err != nil || len(value) == 0 && kst.NumChildren > 0:
		return nil, st.Czxid, false, ErrNoKey
	}
	return value, st.Czxid, false, nil
}

// lookupVersion reads one key of a version: the version, one bucket, the value.
func lookupVersion(ctx context.Context, s *session.Session, root string, n int64, key string) ([]byte, error) {
	m, err := trees.LoadManifest(ctx, s, root, n)
	if err != nil {
		return nil, err
	}
	b := trees.BucketOf(key, m.Bits)
	objects, err := trees.ReadObjectsOf(ctx, s, root, []trees.Digest{m.Buckets[b]})
	if err != nil {
		return nil, err
	}
	entries, err := trees.DecodeBucket(objects[m.Buckets[b]], b, m.Bits)
	if err != nil {
		return nil, err
	}
	i, ok := slices.BinarySearchFunc(entries, key, func(e trees.Entry, k string) int { return strings.Compare(e.Key, k) })
	if !ok {
		return nil, ErrNoKey
	}
	e := entries[i]
	if e.Kind == trees.KindParts {
		return trees.ReadParts(ctx, s, root, e)
	}
	if objects, err = trees.ReadObjectsOf(ctx, s, root, []trees.Digest{e.Sum}); err != nil {
		return nil, err
	}
	return objects[e.Sum], nil
}
