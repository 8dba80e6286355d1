package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// Order is what an operator asks of a rollout.
type Order struct {
	By     string
	Reason string
	// IgnoreGate lets a rollout that is resumed go on although the strategy's
	// group has lost members.
	IgnoreGate bool
}

// Pause lets no further host start, and nothing be decided, until Resume.
func Pause(ctx context.Context, s *session.Session, root, name string, o Order) error {
	return operate(ctx, s, root, name, "pause", func(st *State) ([]session.Op, error) {
		if st.Gate.State == GateHalted || st.Gate.State == GateRefused {
			return nil, st.Err()
		}
		g := st.Gate
		g.Paused, g.By, g.Reason, g.IgnoreGate = true, o.By, clip(o.Reason), false
		return st.set(g), nil
	})
}

// Resume goes on after a pause.
func Resume(ctx context.Context, s *session.Session, root, name string, o Order) error {
	return operate(ctx, s, root, name, "resume", func(st *State) ([]session.Op, error) {
		if st.Gate.State == GateHalted || st.Gate.State == GateRefused {
			return nil, st.Err()
		}
		g := st.Gate
		g.Paused, g.By, g.Reason, g.IgnoreGate = false, o.By, clip(o.Reason), o.IgnoreGate
		return st.set(g), nil
	})
}

// Retry takes the halt away and lets the failed hosts try again. Hosts that are
// absent keep their places until they return.
func Retry(ctx context.Context, s *session.Session, root, name string, o Order) error {
	intended := 0
	return operate(ctx, s, root, name, "retry", func(st *State) ([]session.Op, error) {
		if intended > 0 && st.Gate.Round >= intended {
			return nil, nil // the reply was lost
		}
		if st.Gate.State != GateHalted {
			return nil, errNotHalted
		}
		intended = st.Gate.Round + 1
		return st.set(Gate{
			State: GateOpen, Wave: st.Gate.Wave, Round: intended, Members: st.Gate.Members, By: o.By, Reason: clip(o.Reason),
		}), nil
	})
}

// Abort ends a rollout that is being voted on with nothing changed. One whose
// hosts have begun to change, or that has taken the place of such a one, halts or
// is refused: it can be retried, rolled back or replaced.
func Abort(ctx context.Context, s *session.Session, root, name string, o Order) error {
	return operate(ctx, s, root, name, "abort", func(st *State) ([]session.Op, error) {
		g := st.Gate
		g.By, g.Host, g.Reason = o.By, "", clip(o.Reason)
		if g.Reason == "" {
			g.Reason = "aborted by " + o.By
		}
		switch {
		case g.State == GateHalted || g.State == GateRefused:
			return nil, nil
		case g.State == GateOpen:
			g.State = GateHalted
		case len(st.Proposal.Replaces) > 0:
			g.State = GateRefused
		default:
			g.State, g.Result = GateClosed, ResultAborted
			return append(st.set(g), session.DeleteOp(config.CurrentPath(root), -1)), nil
		}
		return st.set(g), nil
	})
}

// operate changes the gate of an open rollout at the version that was read. No
// operations mean that it is as it should be.
func operate(ctx context.Context, s *session.Session, root, name, what string, change func(*State) ([]session.Op, error)) error {
	lost := false
	for range maxTries {
		state, err := Head(ctx, s, root, name)
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, name, err)
		}
		if !state.Open() {
			if lost {
				return nil // by our own hand, or it does not matter any more
			}
			return closedError(name)
		}
		ops, err := change(state)
		if err != nil || len(ops) == 0 {
			if err != nil {
				err = fmt.Errorf("%s %s: %w", what, name, err)
			}
			return err
		}
		_, err = s.Multi(ctx, ops...)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, session.ErrUnknown):
			lost = true
			if err := s.Sync(ctx, gatePath(root, name)); err != nil {
				return fmt.Errorf("%s %s: %w", what, name, err)
			}
		case !errors.Is(err, session.ErrBadVersion) && !errors.Is(err, session.ErrNoNode):
			return fmt.Errorf("%s %s: %w", what, name, err)
		}
	}
	return fmt.Errorf("%s %s: the rollout changes too fast", what, name)
}

// set changes the gate at the version that was read.
func (s *State) set(g Gate) []session.Op {
	return []session.Op{session.SetOp(gatePath(s.Root, s.Name), encode(g), s.gate)}
}

var errNotHalted = errors.New("it has not halted")

// closedError is the name of a rollout that is closed. It matches [ErrNoRollout].
type closedError string

// Error implements error.
func (e closedError) Error() string { return "rollout " + string(e) + " is closed" }

// Is makes the error match ErrNoRollout.
func (e closedError) Is(target error) bool { return target == ErrNoRollout }
