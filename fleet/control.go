package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// SetControl records what an operator asks of a rollout: run, pause or abort.
// Before the decision an abort makes the coordinator decide abort; after it,
// the rollout is halted.
func SetControl(ctx context.Context, s *session.Session, root, name string, c Control) error {
	state, err := Read(ctx, s, root, name)
	if err != nil {
		return err
	}
	if state.Done != nil {
		return fmt.Errorf("rollout %s is closed: %w", name, ErrNoRollout)
	}
	if c.Action == ActionAbort && state.Decision != nil {
		return createHalt(ctx, s, root, name, Halt{Reason: orDefault(c.Reason, "aborted by "+c.By)})
	}
	if _, err := s.Set(ctx, controlPath(root, name), encode(c), -1); err != nil {
		return fmt.Errorf("control %s: %w", name, err)
	}
	return nil
}

// Retry takes the halt away and lets the failed hosts try again. Hosts that
// are absent keep their place among the active until they return.
func Retry(ctx context.Context, s *session.Session, root, name string) error {
	for range maxTries {
		again, err := retry(ctx, s, root, name)
		if !again {
			return err
		}
	}
	return fmt.Errorf("retry %s: the rollout changes too fast", name)
}

func retry(ctx context.Context, s *session.Session, root, name string) (bool, error) {
	data, stat, err := s.Get(ctx, hostsPath(root, name))
	if err != nil {
		return false, fmt.Errorf("retry %s: %w", name, err)
	}
	activity, err := decode[Activity](hostsPath(root, name), data)
	if err != nil {
		return false, err
	}
	records, err := readRecords[HostRecord](ctx, s, hostsPath(root, name))
	if err != nil {
		return false, err
	}
	ops := []session.Op{session.DeleteOp(haltPath(root, name), -1)}
	for id, r := range records {
		if r.State == HostFailed {
			ops = append(ops, session.DeleteOp(hostsPath(root, name)+"/"+id, -1))
			activity.Started--
		}
	}
	activity.Failed = 0
	ops = append(ops, session.SetOp(hostsPath(root, name), encode(activity), stat.Version),
		session.SetOp(controlPath(root, name), encode(Control{Action: ActionRun}), -1))
	_, err = s.Multi(ctx, ops...)
	switch {
	case errors.Is(err, session.ErrBadVersion):
		return true, nil
	case errors.Is(err, session.ErrNoNode):
		return false, fmt.Errorf("retry %s: it has not halted", name)
	case errors.Is(err, session.ErrUnknown):
		return true, nil // a second attempt finds no halt, or does it again
	}
	return false, err
}

// createHalt stops the rollout; one that has halted already stays as it is.
func createHalt(ctx context.Context, s *session.Session, root, name string, h Halt) error {
	_, _, err := s.Create(ctx, haltPath(root, name), encode(h), session.Persistent)
	if errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("halt %s: %w", name, err)
	}
	return nil
}

func orDefault(s, d string) string {
	if s == "" {
		return d
	}
	return s
}

// contains is slices.Contains for the names in records.
func contains(list []string, id string) bool { return slices.Contains(list, id) }
