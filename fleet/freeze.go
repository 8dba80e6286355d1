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

// A frozen config has <root>/freeze, whose data say why and who froze it. Every flip
// of ready creates and deletes that znode in its own multi. So the flip fails when the
// znode exists. A check before the multi would leave a race.
//
// The transaction that ends a freeze notes it in the data of <root>/rollouts. The list
// of past freezes is bounded.

// FrozenError has the reason why a config is frozen. It matches [ErrFrozen].
type FrozenError struct {
	Path   string    `json:"path"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"`
}

func (e *FrozenError) Error() string {
	by := ""
	if e.By != "" {
		by = " by " + e.By
	}
	return fmt.Sprintf("config %s is frozen%s since %s: %s", e.Path, by, e.Since.UTC().Format(time.RFC3339), e.Reason)
}

// Is makes the error match ErrFrozen.
func (e *FrozenError) Is(target error) bool { return target == ErrFrozen }

// PastFreeze is a freeze that is over, or whose reason was replaced.
type PastFreeze struct {
	By      string    `json:"by,omitempty"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	EndedBy string    `json:"ended_by,omitempty"`
	// Replaced says that the config stayed frozen for another reason.
	Replaced bool `json:"replaced,omitempty"`
}

// freezeRecord is the data of the freeze. Any other text is the reason.
type freezeRecord struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
}

// pastRecord is the data of <root>/rollouts.
type pastRecord struct {
	Freezes []PastFreeze `json:"freezes,omitempty"` // oldest first

	version int32 // of the znode; noReady: there is none
}

// Freeze forbids every publish, rollback and rollout of the config until
// [Unfreeze]. It waits for the publishers' lock, so no publish is half done when it
// returns. Freezing again replaces the reason.
func Freeze(ctx context.Context, s *session.Session, root, by, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("freeze config %s: a reason is needed", root)
	}
	if len(reason) > maxMessage {
		return fmt.Errorf("freeze config %s: the reason has %d bytes, at most %d are allowed: %w", root, len(reason), maxMessage, config.ErrBounds)
	}
	data := encode(freezeRecord{By: by, Reason: reason})
	path := trees.FreezePath(root)
	err := withLock(ctx, s, root, cmp.Or(by, reason), nil, func(ctx context.Context, guard session.Op) error {
		if err := s.CreateParents(ctx, path); err != nil {
			return err
		}
		return transact(ctx, s, root, func(bool) ([]session.Op, error) {
			past, f, stat, err := readFreezes(ctx, s, root)
			switch {
			case err != nil:
				return nil, err
			case f == nil:
				return []session.Op{guard, session.CreateOp(path, data, session.Persistent)}, nil
			case f.By == by && f.Reason == reason:
				return nil, nil // as before, or its reply was lost
			}
			return past.end(f, by, true, guard, session.SetOp(path, data, stat.Version)), nil
		})
	})
	if err != nil {
		return fmt.Errorf("freeze config %s: %w", root, err)
	}
	return nil
}

// Unfreeze allows publishes again. It reports whether the config was frozen.
func Unfreeze(ctx context.Context, s *session.Session, root, by string) (bool, error) {
	frozen := false
	err := transact(ctx, s, root, func(lost bool) ([]session.Op, error) {
		past, f, stat, err := readFreezes(ctx, s, root)
		frozen = f != nil || lost
		if err != nil || f == nil {
			return nil, err
		}
		return past.end(f, by, false, session.DeleteOp(trees.FreezePath(root), stat.Version)), nil
	})
	if err != nil {
		return false, fmt.Errorf("unfreeze config %s: %w", root, err)
	}
	return frozen, nil
}

// end returns the operations that end a freeze, with the note of it.
func (r pastRecord) end(f *FrozenError, by string, replaced bool, end ...session.Op) []session.Op {
	r.Freezes = append(r.Freezes, PastFreeze{By: f.By, Reason: clipPast(f.Reason), Since: f.Since.UTC(), Until: time.Now().UTC(), EndedBy: by, Replaced: replaced})
	r.Freezes = r.Freezes[max(0, len(r.Freezes)-maxPast):]
	if r.version == noReady {
		return append(end, session.CreateOp(trees.RolloutsPath(f.Path), encode(r), session.Persistent))
	}
	return append(end, session.SetOp(trees.RolloutsPath(f.Path), encode(r), r.version))
}

// readFreezes reads the past freezes, and then the one that stands. The order matters: a
// freeze that was made again has the version of the first one, but the end of the first
// one has changed the past freezes.
func readFreezes(ctx context.Context, s *session.Session, root string) (pastRecord, *FrozenError, session.Stat, error) {
	past, err := readPast(ctx, s, root)
	if err != nil {
		return past, nil, session.Stat{}, err
	}
	f, stat, err := readFreeze(ctx, s, root)
	return past, f, stat, err
}

// readPast reads the past freezes. Data of another tool count as none.
func readPast(ctx context.Context, s *session.Session, root string) (pastRecord, error) {
	var r pastRecord
	data, stat, err := s.Get(ctx, trees.RolloutsPath(root))
	if errors.Is(err, session.ErrNoNode) {
		return pastRecord{version: noReady}, nil
	}
	if err != nil {
		return r, fmt.Errorf("config %s: read past freezes: %w", root, err)
	}
	if json.Unmarshal(data, &r) != nil {
		r = pastRecord{}
	}
	r.version = stat.Version
	return r, nil
}

// PastFreezes returns the latest freezes that are over, oldest first.
func PastFreezes(ctx context.Context, s *session.Session, root string) ([]PastFreeze, error) {
	r, err := readPast(ctx, s, root)
	return r.Freezes, err
}

// Frozen returns why the config is frozen, nil when it is not.
func Frozen(ctx context.Context, s *session.Session, root string) (*FrozenError, error) {
	f, _, err := readFreeze(ctx, s, root)
	return f, err
}

// readFreeze reads the freeze and its stat. Since is when its reason was written.
func readFreeze(ctx context.Context, s *session.Session, root string) (*FrozenError, session.Stat, error) {
	data, st, err := s.Get(ctx, trees.FreezePath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, st, nil
	}
	if err != nil {
		return nil, st, fmt.Errorf("config %s: read freeze: %w", root, err)
	}
	r := freezeRecord{}
	if json.Unmarshal(data, &r) != nil || r.Reason == "" {
		r = freezeRecord{Reason: string(data)}
	}
	return &FrozenError{Path: root, Reason: r.Reason, By: r.By, Since: time.UnixMilli(st.Mtime)}, st, nil
}

// checkFreeze returns an error for a frozen config, before anything is written.
func checkFreeze(ctx context.Context, s *session.Session, root string) error {
	f, err := Frozen(ctx, s, root)
	if err != nil || f == nil {
		return err
	}
	return f
}

// Deleting a config moves its ready to <root>-trash, in one transaction. The versions
// and keys stay where they are, so a restore moves ready back, and version numbers
// continue. Garbage collection keeps the version in the trash for TrashKept, and
// then deletes it with its record, unless it is one of the latest.

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

// Delete takes a flat or versioned config out of use, and keeps the data that [Restore]
// needs. Agents that follow it keep their last tree and open a condition. Delete
// refuses a frozen config, and one with an open rollout.
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
	r, stat, err := readRecord[trashRecord](ctx, s, trashPath(root))
	if errors.Is(err, session.ErrNoNode) {
		err = ErrNotDeleted
	}
	r.Path = root
	return r, stat, err
}

// mustHaveConfig returns an error that matches [config.ErrNotReady] when nothing is at
// the root, before the publishers' lock leaves a znode beside it.
func mustHaveConfig(ctx context.Context, s *session.Session, root string) error {
	if _, ok, err := s.Exists(ctx, root); err != nil || ok {
		return err
	}
	return fmt.Errorf("config %s: %w", root, config.ErrNotReady)
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
