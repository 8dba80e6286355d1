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
		return closedError(name)
	}
	if c.Action == ActionAbort && state.Decision != nil {
		return createHalt(ctx, s, root, name, Halt{Reason: orDefault(c.Reason, "aborted by "+c.By)})
	}
	if c.Action != ActionAbort && state.Halt != nil {
		return fmt.Errorf("control %s: %w", name, state.Err())
	}
	for range maxTries {
		again, err := setControl(ctx, s, root, name, c)
		if !again {
			return err
		}
	}
	return fmt.Errorf("control %s: the rollout changes too fast", name)
}

// setControl sets the record at its version: an abort is never taken back by
// whoever did not see it. Setting the same twice does no harm.
func setControl(ctx context.Context, s *session.Session, root, name string, c Control) (bool, error) {
	data, stat, err := s.Get(ctx, controlPath(root, name))
	if err != nil {
		return false, fmt.Errorf("control %s: %w", name, err)
	}
	have, err := decode[Control](controlPath(root, name), data)
	if err != nil {
		return false, err
	}
	if have.Action == ActionAbort && c.Action != ActionAbort {
		return false, fmt.Errorf("control %s: %w: %s", name, ErrAborted, orDefault(have.Reason, "by "+have.By))
	}
	_, err = s.Set(ctx, controlPath(root, name), encode(c), stat.Version)
	switch {
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrUnknown):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("control %s: %w", name, err)
	}
	return false, nil
}

// Retry takes the halt away and lets the failed hosts try again. Hosts that
// are absent keep their place among the active until they return.
func Retry(ctx context.Context, s *session.Session, root, name string) error {
	lost := false // the reply of an attempt, so that it may have been made
	for range maxTries {
		again, err := retry(ctx, s, root, name)
		switch {
		case errors.Is(err, session.ErrUnknown):
			if err := s.Sync(ctx, haltPath(root, name)); err != nil {
				return fmt.Errorf("retry %s: %w", name, err)
			}
			lost = true
		case errors.Is(err, errNotHalted) && lost:
			return nil
		case !again:
			return err
		}
	}
	return fmt.Errorf("retry %s: the rollout changes too fast", name)
}

func retry(ctx context.Context, s *session.Session, root, name string) (bool, error) {
	if _, closed, err := s.Exists(ctx, donePath(root, name)); err != nil || closed {
		if closed {
			return false, closedError(name)
		}
		return false, fmt.Errorf("retry %s: %w", name, err)
	}
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
	for _, id := range sortedKeys(records) {
		if records[id].State == HostFailed {
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
		return false, fmt.Errorf("retry %s: %w", name, errNotHalted)
	}
	return false, err
}

var errNotHalted = errors.New("it has not halted")

// closedError is the name of a rollout that is closed. It matches [ErrNoRollout].
type closedError string

// Error implements error.
func (e closedError) Error() string { return "rollout " + string(e) + " is closed" }

// Is makes the error match ErrNoRollout.
func (e closedError) Is(target error) bool { return target == ErrNoRollout }

// createHalt stops the rollout; one that has halted already stays as it is.
func createHalt(ctx context.Context, s *session.Session, root, name string, h Halt) error {
	var err error
	for range maxTries {
		_, _, err = s.Create(ctx, haltPath(root, name), encode(h), session.Persistent)
		if err == nil || errors.Is(err, session.ErrNodeExists) {
			return nil
		}
		if !errors.Is(err, session.ErrUnknown) {
			break
		}
	}
	return fmt.Errorf("halt %s: %w", name, err)
}

func orDefault(s, d string) string {
	if s == "" {
		return d
	}
	return s
}

// contains is slices.Contains for the names in records.
func contains(list []string, id string) bool { return slices.Contains(list, id) }
