package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Deleting a config moves its ready to <root>-trash, in one transaction. The versions
// and keys stay where they are, so a restore moves ready back, and version numbers
// continue. Garbage collection keeps the version in the trash for TrashKept, and
// then deletes it with its record, if it is none of the latest.

// TrashKept is how long garbage collection keeps the version of a deleted config.
const TrashKept = 7 * 24 * time.Hour

// ErrNotDeleted says that no deleted config is kept at the path.
var ErrNotDeleted = errors.New("no deleted config is kept")

// Deleted is a config that was deleted and can be restored.
type Deleted struct {
	Path    string    `json:"path"`
	Layout  string    `json:"layout"`
	Version int64     `json:"version,omitempty"` // that was in use; 0 in a flat tree
	By      string    `json:"by,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
}

// trashRecord is the data of <root>-trash.
type trashRecord struct {
	Deleted

	Ready []byte `json:"ready"` // its data
}

func trashPath(root string) string { return root + "-trash" }

// Delete takes a flat or versioned config out of use and keeps what [Restore] needs.
// Agents that follow it keep their last tree and open a condition. A frozen config, or
// one with an open rollout, is refused.
func Delete(ctx context.Context, s *session.Session, root, by, reason string) (Deleted, error) {
	if err := mustHaveConfig(ctx, s, root); err != nil {
		return Deleted{}, err
	}
	var r trashRecord
	err := withLock(ctx, s, root, by, nil, func(ctx context.Context, guard session.Op) error {
		return transact(ctx, s, root, func(lost bool) ([]session.Op, error) {
			kept, _, noTrash := readTrash(ctx, s, root)
			if lost && kept.At.Equal(r.At) {
				return nil, nil
			}
			data, stat, err := s.Get(ctx, trees.ReadyPath(root))
			if errors.Is(err, session.ErrNoNode) {
				return nil, config.ErrNotReady
			}
			if err != nil {
				return nil, err
			}
			if err = CheckPublish(ctx, s, root, false); err != nil {
				return nil, err
			}
			ready, versioned, err := trees.ParseReady(data)
			if err != nil {
				return nil, err
			}
			gone := Deleted{Path: root, Layout: config.LayoutFlat, Version: ready.Version, By: by, Reason: clip(reason), At: time.Now().UTC()}
			r = trashRecord{Deleted: gone, Ready: data}
			_, epoch, err := s.Exists(ctx, trees.VersionsPath(root))
			if err != nil {
				return nil, err
			}
			if versioned {
				r.Layout = config.LayoutVersioned
			} else if err := s.CreateParents(ctx, currentPath(root)); err != nil { // closeOps needs the parent
				return nil, err
			}
			rollout, err := closeOps(ctx, s, root, by, false)
			if err != nil {
				return nil, err
			}
			keep := session.SetOp(trashPath(root), encode(r), -1)
			if errors.Is(noTrash, ErrNotDeleted) {
				keep = session.CreateOp(trashPath(root), encode(r), session.Persistent)
			}
			ops := slices.Concat([]session.Op{guard}, absent(trees.FreezePath(root)), rollout, []session.Op{session.DeleteOp(trees.ReadyPath(root), stat.Version), keep})
			if epoch { // a proposal starts over: it may find a new ready with the version of the old one
				ops = append(ops, session.SetOp(trees.VersionsPath(root), nil, -1))
			}
			return ops, nil
		})
	})
	if err != nil {
		return Deleted{}, fmt.Errorf("delete config %s: %w", root, err)
	}
	return r.Deleted, nil
}

// Restore puts a deleted config into use again, as it was. The error matches
// [ErrNotDeleted] when none is kept, and [ErrConflict] when a config is in use at the
// path.
func Restore(ctx context.Context, s *session.Session, root, by string) (Deleted, error) {
	var r trashRecord
	err := withLock(ctx, s, root, by, nil, func(ctx context.Context, guard session.Op) error {
		return transact(ctx, s, root, func(lost bool) ([]session.Op, error) {
			kept, stat, err := readTrash(ctx, s, root)
			if lost && errors.Is(err, ErrNotDeleted) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			r = kept
			if err := checkFreeze(ctx, s, root); err != nil {
				return nil, err
			}
			if r.Version > 0 {
				if _, err := trees.LoadManifest(ctx, s, root, r.Version); err != nil {
					return nil, err
				}
			}
			if _, ok, err := s.Exists(ctx, trees.ReadyPath(root)); err != nil || ok {
				return nil, cmp.Or(err, fmt.Errorf("a config is in use there: %w", ErrConflict))
			}
			return append(append([]session.Op{guard}, absent(trees.FreezePath(root))...),
				session.CreateOp(trees.ReadyPath(root), r.Ready, session.Persistent), session.DeleteOp(trashPath(root), stat.Version)), nil
		})
	})
	if err != nil {
		return Deleted{}, fmt.Errorf("restore config %s: %w", root, err)
	}
	return r.Deleted, nil
}

// InTrash returns the deleted config that is kept for the path.
func InTrash(ctx context.Context, s *session.Session, root string) (Deleted, error) {
	r, _, err := readTrash(ctx, s, root)
	return r.Deleted, err
}

func readTrash(ctx context.Context, s *session.Session, root string) (trashRecord, session.Stat, error) {
	var r trashRecord
	data, stat, err := s.Get(ctx, trashPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return r, stat, fmt.Errorf("config %s: %w", root, ErrNotDeleted)
	}
	if err == nil && json.Unmarshal(data, &r) != nil {
		err = fmt.Errorf("%s: %w", trashPath(root), ErrBadRecord)
	}
	r.Path = root
	return r, stat, err
}

// mustHaveConfig returns an error that matches [config.ErrNotReady] when nothing is at
// the root, before the publishers' lock leaves a znode beside it.
func mustHaveConfig(ctx context.Context, s *session.Session, root string) error {
	if err := session.ValidatePath(root); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if _, ok, err := s.Exists(ctx, root); err != nil || ok {
		return err
	}
	return fmt.Errorf("there is no config at %s: %w", root, config.ErrNotReady)
}

// Followers returns the hosts that follow the configs at, below or above a path, by the
// root of the config: those that are in use, as agents record it.
func Followers(ctx context.Context, s *session.Session, path string) (map[string][]string, error) {
	hosts, err := Agents(ctx, s)
	if err != nil {
		return nil, err
	}
	followers := map[string][]string{}
	for _, h := range hosts {
		for _, use := range h.Configs {
			if use.Path != "" && (use.Path == path || strings.HasPrefix(use.Path, strings.TrimSuffix(path, "/")+"/") || strings.HasPrefix(path, use.Path+"/")) {
				followers[use.Path] = append(followers[use.Path], h.ID)
			}
		}
	}
	for root := range followers {
		if _, ok, err := s.Exists(ctx, trees.ReadyPath(root)); err != nil {
			return nil, err
		} else if !ok {
			delete(followers, root)
		}
	}
	return followers, nil
}
