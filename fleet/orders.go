package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// Order is an operator's order for a rollout.
type Order struct {
	By     string
	Reason string
	// IgnoreGate lets a resumed rollout continue although the strategy's group has
	// lost members.
	IgnoreGate bool
}

// Orders returns the commands below "zkagent rollout" that a rollout in this phase
// takes.
func Orders(phase string) []string {
	switch phase {
	case PhaseVoting, PhaseRolling:
		return []string{"pause", "abort"}
	case PhasePaused:
		return []string{"resume", "abort"}
	case PhaseHalted:
		return []string{"retry", "undo"}
	case PhaseRefused:
		return []string{"undo"}
	}
	return nil
}

// Pause stops new starts and decisions until Resume.
func Pause(ctx context.Context, s *session.Session, root, name string, o Order) error {
	o.IgnoreGate = false
	return setPaused(ctx, s, root, name, "pause", true, o)
}

// Resume continues a paused rollout.
func Resume(ctx context.Context, s *session.Session, root, name string, o Order) error {
	return setPaused(ctx, s, root, name, "resume", false, o)
}

func setPaused(ctx context.Context, s *session.Session, root, name, what string, paused bool, o Order) error {
	return operate(ctx, s, root, name, what, func(st *State) ([]session.Op, error) {
		if st.Gate.State == GateHalted || st.Gate.State == GateRefused {
			return nil, st.Err()
		}
		g := st.Gate
		g.Paused, g.By, g.Reason, g.IgnoreGate = paused, o.By, clip(o.Reason), o.IgnoreGate
		return st.set(g), nil
	})
}

// Retry ends the halt and lets the failed hosts try again. absent hosts keep their
// places until they return.
func Retry(ctx context.Context, s *session.Session, root, name string, o Order) error {
	intended := 0
	return operate(ctx, s, root, name, "retry", func(st *State) ([]session.Op, error) {
		if intended > 0 && st.Gate.Round >= intended {
			return nil, nil // the reply was lost
		}
		if st.Gate.State != GateHalted {
			return nil, errors.New("it has not halted")
		}
		intended = st.Gate.Round + 1
		return st.set(Gate{
			State: GateOpen, Wave: st.Gate.Wave, Round: intended, Members: st.Gate.Members, By: o.By, Reason: clip(o.Reason),
		}), nil
	})
}

// Abort ends a rollout. During the vote, nothing has changed and the rollout
// closes. If hosts have started to change, here or in a rollout that this one
// replaced, the rollout halts or is refused instead. An operator can then retry it,
// roll it back or replace it.
func Abort(ctx context.Context, s *session.Session, root, name string, o Order) error {
	return operate(ctx, s, root, name, "abort", func(st *State) ([]session.Op, error) {
		g := st.Gate
		g.Paused, g.By, g.Host, g.Reason = false, o.By, "", cmp.Or(clip(o.Reason), "aborted by "+o.By)
		switch {
		case g.State == GateHalted || g.State == GateRefused:
			return nil, nil
		case g.State == GateOpen:
			g.State = GateHalted
		case len(st.Proposal.Replaces) > 0:
			g.State = GateRefused
		default:
			g.State, g.Result = GateClosed, ResultAborted
			return append(st.set(g), session.DeleteOp(currentPath(root), -1)), nil
		}
		return st.set(g), nil
	})
}

// operate changes the gate of an open rollout. No operations: the gate is right already.
func operate(ctx context.Context, s *session.Session, root, name, what string, change func(*State) ([]session.Op, error)) error {
	err := transact(ctx, s, gatePath(root, name), func(lost bool) ([]session.Op, error) {
		state, err := Head(ctx, s, root, name)
		switch {
		case err != nil:
			return nil, err
		case state.Open():
			return change(state)
		case lost:
			return nil, nil // already done, or closed meanwhile
		}
		return nil, closedError(name)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, name, err)
	}
	return nil
}

// set returns the operation that changes the gate at the version that was read.
func (s *State) set(g Gate) []session.Op {
	return []session.Op{session.SetOp(gatePath(s.Root, s.Name), encode(g.after(s.Gate, s.GateAt.Time)), s.gate)}
}

// closedError is the name of a rollout that is closed. It matches [ErrNoRollout].
type closedError string

func (e closedError) Error() string { return "rollout " + string(e) + " is closed" }

// Is makes the error match ErrNoRollout.
func (e closedError) Is(target error) bool { return target == ErrNoRollout }
