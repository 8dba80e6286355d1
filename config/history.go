package config

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// History returns the versions that are kept, newest first. A version that
// cannot be decoded is left out. The error matches [ErrNoVersion] when the tree
// is flat, which keeps none.
func History(ctx context.Context, s *session.Session, root string) ([]Version, error) {
	r, _, err := ReadReady(ctx, s, root)
	if err != nil && !errors.Is(err, ErrNotReady) {
		return nil, err
	}
	manifests, err := readManifests(ctx, s, root)
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
		v := m.describe()
		v.Active, v.Used = v.Number == r.Version, used[v.Number]
		list = append(list, v)
	}
	slices.Reverse(list)
	return list, nil
}

// readManifests returns the versions that are there, oldest first.
func readManifests(ctx context.Context, s *session.Session, root string) ([]*manifest, error) {
	numbers, err := versionNumbers(ctx, s, root)
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(numbers))
	for i, n := range numbers {
		paths[i] = versionPath(root, n)
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("config %s: read versions: %w", root, err)
	}
	var list []*manifest
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue
		}
		if r.Err != nil {
			return nil, fmt.Errorf("config %s: read version %d: %w", root, numbers[i], r.Err)
		}
		if m, err := decodeManifest(numbers[i], r.Data); err == nil {
			list = append(list, m)
		}
	}
	return list, nil
}

// versionNumbers returns the numbers of the versions that are there, sorted.
func versionNumbers(ctx context.Context, s *session.Session, root string) ([]int64, error) {
	names, _, err := s.Children(ctx, root+"/"+elemVersions)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("config %s: list versions: %w", root, err)
	}
	var numbers []int64
	for _, name := range names {
		if n, ok := parseVersionName(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}
