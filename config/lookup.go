package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// Lookup reads one key of the tree in use, and the generation of that tree. It
// costs a few requests for a tree of any size, so it can serve as a name service. A
// missing key or tree is an error that matches [ErrNoKey] or [ErrNotReady].
func Lookup(ctx context.Context, s *session.Session, root, key string) ([]byte, int64, error) {
	if err := ValidateKey(key); err != nil {
		return nil, 0, fmt.Errorf("look up: %w", err)
	}
	for range maxTries {
		value, generation, again, err := lookup(ctx, s, root, key)
		if err != nil {
			return nil, generation, fmt.Errorf("look up %s in config %s: %w", key, root, err)
		}
		if !again {
			return value, generation, nil
		}
	}
	return nil, 0, fmt.Errorf("look up %s in config %s: %w: it changed during each of %d readings", key, root, ErrNotReady, maxTries)
}

// lookup reads the value and its generation once, and reports whether the tree
// changed meanwhile.
func lookup(ctx context.Context, s *session.Session, root, key string) ([]byte, int64, bool, error) {
	data, st, err := s.Get(ctx, readyPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, 0, false, ErrNotReady
	}
	if err != nil {
		return nil, 0, false, err
	}
	r, versioned, err := ParseReady(data)
	if err != nil {
		return nil, 0, false, err
	}
	if versioned {
		value, keyErr := lookupVersion(ctx, s, root, r.Version, key)
		if errors.Is(keyErr, errGone) {
			now, _, readErr := ReadReady(ctx, s, root)
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
	after, ok, existsErr := s.Exists(ctx, readyPath(root))
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
	m, err := loadManifest(ctx, s, root, n)
	if err != nil {
		return nil, err
	}
	b := bucketOf(key, m.Bits)
	objects, err := readObjectsOf(ctx, s, root, []digest{m.buckets[b]})
	if err != nil {
		return nil, err
	}
	entries, err := decodeBucket(objects[m.buckets[b]], b, m.Bits)
	if err != nil {
		return nil, err
	}
	i, ok := slices.BinarySearchFunc(entries, key, func(e entry, k string) int { return strings.Compare(e.key, k) })
	if !ok {
		return nil, ErrNoKey
	}
	e := entries[i]
	if e.kind == kindParts {
		return (&loader{s: s, root: root}).readParts(ctx, e)
	}
	if objects, err = readObjectsOf(ctx, s, root, []digest{e.sum}); err != nil {
		return nil, err
	}
	return objects[e.sum], nil
}
