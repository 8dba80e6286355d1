package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Shards is the number of shards.
const Shards = 64

// Shard is the shard of an agent, "00" to "3f".
func Shard(id string) string {
	return fmt.Sprintf("%02x", sha256.Sum256([]byte(id))[0]>>2)
}

func currentPath(root string) string { return trees.RolloutsPath(root) + "/current" }

func shardPath(root, shard string) string { return trees.RolloutsPath(root) + "/shards/" + shard }

// SubscriptionPath is the subscription of an agent.
func SubscriptionPath(root, id string) string { return shardPath(root, Shard(id)) + "/" + id }

// closeOps returns operations that end the open rollout in the caller's
// transaction. An emergency ends any rollout, another publish only a dry run. If no
// rollout is open, the operations make the transaction fail when one is opened
// meanwhile. If the open rollout must stay, the error matches [ErrOpen].
func closeOps(ctx context.Context, s *session.Session, root, by string, emergency bool) ([]session.Op, error) {
	open, err := Opened(ctx, s, root)
	switch {
	case err != nil:
		return nil, fmt.Errorf("config %s: %w", root, err)
	case open == nil:
		return absent(currentPath(root)), nil
	case open.Proposal.Dry:
		return open.close(ResultReplaced, by, false), nil
	case emergency:
		return open.close(ResultSuperseded, by, false), nil
	}
	return nil, fmt.Errorf("config %s: %w: %s", root, ErrOpen, open.Name)
}

// Opened returns the open rollout without its hosts; nil: none is open. A rollout whose
// gate is closed is not the open one any more.
func Opened(ctx context.Context, s *session.Session, root string) (*State, error) {
	for range maxTries {
		name, err := Current(ctx, s, root)
		if errors.Is(err, ErrNoRollout) {
			return nil, nil //nolint:nilnil // no open rollout is no error
		}
		if err != nil {
			return nil, fmt.Errorf("read the open rollout: %w", err)
		}
		state, err := Head(ctx, s, root, name)
		if errors.Is(err, ErrNoRollout) {
			continue // a dry run, deleted meanwhile
		}
		if err != nil || state.Open() {
			return state, err
		}
	}
	return nil, errors.New("rollouts are opened and closed too fast")
}

func (s *State) close(result, by string, rolledBack bool) []session.Op {
	g := s.Gate
	g.State, g.Paused, g.Result, g.By, g.RolledBack = GateClosed, false, result, by, rolledBack
	return append(s.set(g), session.DeleteOp(currentPath(s.Root), -1))
}

func shardNames() []string {
	names := make([]string, Shards)
	for i := range names {
		names[i] = fmt.Sprintf("%02x", i)
	}
	return names
}

// subscriberIDs are the ids of the subscribed agents, as listShards returns them.
func subscriberIDs(ctx context.Context, s *session.Session, root string) (map[string][]string, error) {
	return listShards(ctx, s, trees.RolloutsPath(root)+"/shards", shardNames())
}

// createShards creates the missing shards. An agent creates its own.
func (p *publisher) createShards(ctx context.Context) error {
	names := shardNames()
	if _, ok, err := p.s.Exists(ctx, shardPath(p.cfg.Path, names[Shards-1])); err != nil || ok {
		return err
	}
	if err := p.s.CreateParents(ctx, shardPath(p.cfg.Path, names[0])); err != nil {
		return fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	paths := lists.Map(names, func(name string) string { return shardPath(p.cfg.Path, name) })
	return p.createAll(ctx, paths)
}

// Paths of one rollout.
func rolloutPath(root, name string) string     { return trees.RolloutsPath(root) + "/" + name }
func coordinatorPath(root, name string) string { return rolloutPath(root, name) + "/coordinator" }
func progressPath(root, name string) string    { return rolloutPath(root, name) + "/progress" }
func hostsPath(root, name string) string       { return rolloutPath(root, name) + "/hosts" }
func gatePath(root, name string) string        { return rolloutPath(root, name) + "/gate" }

func snapshotPath(root, name, shard string) string { return hostsPath(root, name) + "/" + shard }

func recordPath(root, name, id string) string {
	return snapshotPath(root, name, Shard(id)) + "/" + id
}

func rolloutName(n int64) string { return fmt.Sprintf("r-%010d", n) }

func rolloutNumber(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, "r-")
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n >= 0
}

// Purposes of a draw.
const (
	drawCoordinate = "coordinate" // who stands for coordinator
	drawCanary     = "canary"     // who goes first
	drawSample     = "sample"     // who shows differences in a dry run
)

// draw returns a number in [0,1) that depends on the purpose, the rollout and the
// host. The purpose matters: the hosts that try a version first must not be those
// that coordinate, because the version may kill them.
func draw(purpose, rollout, id string) float64 {
	sum := sha256.Sum256([]byte(purpose + "/" + rollout + "/" + id))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

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

func (e closedError) Error() string { return "rollout " + string(e) + " is over" }

// Is makes the error match ErrNoRollout.
func (e closedError) Is(target error) bool { return target == ErrNoRollout }
