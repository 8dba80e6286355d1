package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
