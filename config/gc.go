package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// DefaultKeep is how many of the newest versions garbage collection keeps.
const DefaultKeep = 20

// Collected tells what a garbage collection deleted.
type Collected struct {
	Versions []int64 `json:"versions"`
	Objects  int     `json:"objects"`
}

// GC deletes versions that nobody needs, and objects that no version needs. Kept
// are the keep newest versions (0: [DefaultKeep]), the one in use and the one
// before, and those of the open rollout and of every subscriber.
//
// It runs under the publishers' lock, so that no publisher relies on an object
// that is being deleted. A reader in the middle of a deleted version finds a
// znode missing, and reads ready again.
func GC(ctx context.Context, s *session.Session, root string, keep int, log *slog.Logger) (Collected, error) {
	var c Collected
	if keep <= 0 {
		keep = DefaultKeep
	}
	err := withLock(ctx, s, root, "garbage collection", log, func(ctx context.Context, guard session.Op) error {
		kept, dead, err := sortVersions(ctx, s, root, keep)
		if err != nil {
			return err
		}
		live, err := liveObjects(ctx, s, root, kept)
		if err != nil {
			return err
		}
		paths := make([]string, len(dead))
		for i, n := range dead {
			paths[i] = versionPath(root, n)
		}
		if err = deleteAll(ctx, s, guard, paths); err != nil {
			return err
		}
		c.Versions = dead
		c.Objects, err = sweepObjects(ctx, s, root, guard, live)
		return err
	})
	if err != nil {
		return c, fmt.Errorf("collect garbage of config %s: %w", root, err)
	}
	return c, nil
}

// sortVersions tells which versions are kept and which are not.
func sortVersions(ctx context.Context, s *session.Session, root string, keep int) ([]int64, []int64, error) {
	numbers, err := versionNumbers(ctx, s, root)
	if err != nil {
		return nil, nil, err
	}
	needed, err := neededVersions(ctx, s, root)
	if err != nil {
		return nil, nil, err
	}
	var kept, dead []int64
	for i, n := range numbers {
		if needed[n] || i >= len(numbers)-keep {
			kept = append(kept, n)
		} else {
			dead = append(dead, n)
		}
	}
	return kept, dead, nil
}

// neededVersions returns the versions that something refers to.
func neededVersions(ctx context.Context, s *session.Session, root string) (map[int64]bool, error) {
	needed := map[int64]bool{}
	r, _, err := ReadReady(ctx, s, root)
	if err != nil && !errors.Is(err, ErrNotReady) {
		return nil, err
	}
	needed[r.Version], needed[r.Previous] = true, true
	if err = rolloutVersions(ctx, s, root, r.Rollout, needed); err != nil {
		return nil, err
	}
	agents, err := Subscribers(ctx, s, root)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		needed[a.Version] = true
	}
	return needed, nil
}

// rolloutVersions adds the versions of the open rollout and of the one that
// brought the version in use.
func rolloutVersions(ctx context.Context, s *session.Session, root, last string, needed map[int64]bool) error {
	dir := root + "/" + elemRollouts
	data, _, err := s.Get(ctx, dir+"/current")
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("read the open rollout: %w", err)
	}
	open := rolloutName(data)
	for _, name := range []string{open, last} {
		if name == "" || strings.Contains(name, "/") {
			continue
		}
		data, _, err := s.Get(ctx, dir+"/"+name)
		if errors.Is(err, session.ErrNoNode) && name != open {
			continue
		}
		if err != nil {
			return fmt.Errorf("read rollout %s: %w", name, err)
		}
		var rec struct {
			Version  int64 `json:"version"`
			Previous int64 `json:"previous"`
		}
		if err := json.Unmarshal(data, &rec); err != nil {
			return fmt.Errorf("rollout %s is not understood, nothing is deleted: %w", name, err)
		}
		needed[rec.Version], needed[rec.Previous] = true, true
	}
	return nil
}

// rolloutName is the name in the data of rollouts/current: the name itself, as
// text or JSON, or an object with the property rollout.
func rolloutName(data []byte) string {
	var rec struct {
		Rollout string `json:"rollout"`
	}
	var name string
	switch {
	case json.Unmarshal(data, &rec) == nil && rec.Rollout != "":
		return rec.Rollout
	case json.Unmarshal(data, &name) == nil:
		return name
	}
	return strings.TrimSpace(string(data))
}

// liveObjects returns every object that one of the versions refers to.
func liveObjects(ctx context.Context, s *session.Session, root string, versions []int64) (map[digest]bool, error) {
	live := map[digest]bool{}
	for _, n := range versions {
		m, err := loadManifest(ctx, s, root, n)
		if err != nil {
			return nil, err
		}
		for i, sum := range m.buckets {
			if live[sum] {
				continue
			}
			objects, err := readObjectsOf(ctx, s, root, []digest{sum})
			if errors.Is(err, errGone) || errors.Is(err, ErrDigest) {
				continue // The version is broken already; what else it has is kept.
			}
			if err != nil {
				return nil, err
			}
			entries, err := decodeBucket(objects[sum], i, m.Bits)
			if err != nil {
				return nil, err
			}
			live[sum] = true
			if err := liveEntries(ctx, s, root, entries, live); err != nil {
				return nil, err
			}
		}
	}
	return live, nil
}

// liveEntries adds the objects of a bucket's values.
func liveEntries(ctx context.Context, s *session.Session, root string, entries []entry, live map[digest]bool) error {
	for _, e := range entries {
		live[e.sum] = true
		if e.kind != kindParts {
			continue
		}
		objects, err := readObjectsOf(ctx, s, root, []digest{e.sum})
		if err != nil {
			return err
		}
		parts, err := decodeParts(objects[e.sum])
		if err != nil {
			return err
		}
		for _, sum := range parts {
			live[sum] = true
		}
	}
	return nil
}

// sweepObjects deletes the objects that are not live, and returns how many.
func sweepObjects(ctx context.Context, s *session.Session, root string, guard session.Op, live map[digest]bool) (int, error) {
	dir := root + "/" + elemObjects
	shelves, _, err := s.Children(ctx, dir)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return 0, fmt.Errorf("list objects: %w", err)
	}
	var paths []string
	for _, shelf := range shelves {
		names, _, err := s.Children(ctx, dir+"/"+shelf)
		if err != nil {
			return 0, fmt.Errorf("list objects: %w", err)
		}
		for _, name := range names {
			if sum, err := parseDigest(digestPrefix + name); err == nil && !live[sum] {
				paths = append(paths, dir+"/"+shelf+"/"+name)
			}
		}
	}
	return len(paths), deleteAll(ctx, s, guard, paths)
}
