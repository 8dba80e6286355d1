package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

// A frozen config has <root>/freeze, whose data is the reason. Every flip of ready
// creates and deletes that znode in its own multi. So the flip fails when the znode
// exists. A check before the multi would leave a race.

// FrozenError says why a config is frozen. It matches [ErrFrozen].
type FrozenError struct {
	Path   string    `json:"path"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Error implements error.
func (e *FrozenError) Error() string {
	return fmt.Sprintf("config %s is frozen since %s: %s", e.Path, e.Since.UTC().Format(time.RFC3339), e.Reason)
}

// Is makes the error match ErrFrozen.
func (e *FrozenError) Is(target error) bool { return target == ErrFrozen }

func freezePath(root string) string { return root + "/" + elemFreeze }

// Freeze forbids every publish, rollback and rollout of the config until
// [Unfreeze]. It waits for the publishers' lock, so no publish is half done when it
// returns. Freezing again replaces the reason.
func Freeze(ctx context.Context, s *session.Session, root, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("freeze config %s: a reason is needed", root)
	}
	return withLock(ctx, s, root, reason, nil, func(ctx context.Context, _ session.Op) error {
		if err := s.CreateParents(ctx, freezePath(root)); err != nil {
			return fmt.Errorf("freeze config %s: %w", root, err)
		}
		for range maxTries {
			_, _, err := s.Create(ctx, freezePath(root), []byte(reason), session.Persistent)
			if errors.Is(err, session.ErrNodeExists) {
				_, err = s.Set(ctx, freezePath(root), []byte(reason), -1)
			}
			if err == nil {
				return nil
			}
			if !errors.Is(err, session.ErrUnknown) && !errors.Is(err, session.ErrNoNode) {
				return fmt.Errorf("freeze config %s: %w", root, err)
			}
		}
		return fmt.Errorf("freeze config %s: %w", root, session.ErrUnknown)
	})
}

// Unfreeze allows publishes again. It reports whether the config was frozen.
func Unfreeze(ctx context.Context, s *session.Session, root string) (bool, error) {
	for range maxTries {
		err := s.Delete(ctx, freezePath(root), -1)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, session.ErrNoNode):
			return false, nil
		case !errors.Is(err, session.ErrUnknown):
			return false, fmt.Errorf("unfreeze config %s: %w", root, err)
		}
	}
	return false, fmt.Errorf("unfreeze config %s: %w", root, session.ErrUnknown)
}

// Frozen returns why the config is frozen, nil when it is not.
func Frozen(ctx context.Context, s *session.Session, root string) (*FrozenError, error) {
	data, st, err := s.Get(ctx, freezePath(root))
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil //nolint:nilnil // not frozen is no error
	}
	if err != nil {
		return nil, fmt.Errorf("config %s: read freeze: %w", root, err)
	}
	return &FrozenError{Path: root, Reason: string(data), Since: time.UnixMilli(st.Ctime)}, nil
}

// checkFreeze returns an error for a frozen config, before anything is written.
func checkFreeze(ctx context.Context, s *session.Session, root string) error {
	f, err := Frozen(ctx, s, root)
	if err != nil || f == nil {
		return err
	}
	return f
}
