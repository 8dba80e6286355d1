package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// Request proposes a version that is written and not in use.
type Request struct {
	Root     string // root znode of the tree
	Version  int64
	Digest   string
	Delta    *config.Delta // to the version in use; nil: hosts read the version
	Strategy Strategy
	Who      string
	Why      string
	// RollbackOf is the version that this one takes back; 0 otherwise.
	RollbackOf int64
	// Replace names a halted or refused rollout that the proposal closes in the
	// same transaction. Empty: an open rollout is an error.
	Replace string
	// Base is the version that must be in use when the rollout opens; 0: any. Set
	// it when the new version was made from Base or planned on it.
	Base int64
	// Dry asks every host what the version would change. No host ever uses it.
	Dry bool
}

// maxTries bounds the retries after races with other proposers.
const maxTries = 16

const (
	// maxCalls bounds the proposal, with the calls that it makes itself and the
	// gate that it closes, in bytes. The coordinator makes the rest.
	maxCalls = 400 << 10
	// maxProposal bounds a proposal, which is in every call, in bytes.
	maxProposal = 128 << 10
)

// Propose opens a rollout and returns its name. It creates everything in one
// transaction. The errors are [ErrOpen], [ErrNobody], config.ErrFrozen,
// config.ErrConflict when Base is not in use, and those of the session.
func Propose(ctx context.Context, s *session.Session, r Request) (string, error) {
	if err := s.CreateParents(ctx, config.CurrentPath(r.Root)); err != nil {
		return "", fmt.Errorf("propose: %w", err)
	}
	for range maxTries {
		p := &proposer{s: s, r: r}
		again, err := p.try(ctx)
		if err != nil {
			return "", fmt.Errorf("propose: %w", err)
		}
		if !again {
			return p.name, nil
		}
	}
	return "", fmt.Errorf("propose %s: lost %d races with other proposers", r.Root, maxTries)
}

// proposer is one attempt.
type proposer struct {
	s        *session.Session
	r        Request
	name     string
	proposal Proposal
	old      *openRollout // which is closed; nil: none
	closing  []session.Op // closes the open rollout
	size     int          // of the gate that closes it, in bytes
}

// openRollout is the rollout that the proposal closes.
type openRollout struct {
	name     string
	proposal Proposal
	gate     Gate
	stat     session.Stat // of the gate
}

func (p *proposer) try(ctx context.Context) (bool, error) {
	if err := p.look(ctx); err != nil {
		return false, err
	}
	shards, err := config.SubscriberIDs(ctx, p.s, p.r.Root)
	if err != nil {
		return false, err
	}
	return p.open(ctx, shards)
}

// look reads the current state and prepares what follows from it.
func (p *proposer) look(ctx context.Context) error {
	if err := p.findOpen(ctx); err != nil {
		return err
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.close()
	return nil
}

// open opens the rollout for subscribers, by shard.
func (p *proposer) open(ctx context.Context, shards map[string][]string) (bool, error) {
	if err := p.count(shards); err != nil {
		return false, err
	}
	if err := p.giveName(ctx); err != nil {
		return false, err
	}
	if n := len(encode(p.proposal)); n > maxProposal {
		return false, fmt.Errorf("the proposal has %d bytes, at most %d are allowed: name fewer canaries or write a shorter message: %w", n, maxProposal, config.ErrBounds)
	}
	_, err := p.s.Multi(ctx, p.ops(shards)...)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, session.ErrUnknown):
		return p.settle(ctx)
	}
	return p.explain(ctx, err)
}

// giveName gives the rollout the number after the last one.
func (p *proposer) giveName(ctx context.Context) error {
	if p.r.Dry {
		p.name = dryName(p.r.Version)
		return nil
	}
	names, err := Names(ctx, p.s, p.r.Root)
	if err != nil {
		return err
	}
	next := int64(0)
	if len(names) > 0 {
		last, _ := rolloutNumber(names[len(names)-1])
		next = last + 1
	}
	p.name = rolloutName(next)
	return nil
}

// findOpen finds what has to be closed: the rollout that is replaced, or a dry run.
// A rollout whose gate is closed is not the open one any more.
func (p *proposer) findOpen(ctx context.Context) error {
	root := p.r.Root
	for range maxTries {
		name, err := Current(ctx, p.s, root)
		if errors.Is(err, ErrNoRollout) {
			return nil
		}
		if err != nil {
			return err
		}
		proposal, err := readProposal(ctx, p.s, root, name)
		if errors.Is(err, session.ErrNoNode) {
			continue // a dry run, deleted meanwhile
		}
		if err != nil {
			return err
		}
		gate, stat, err := readGate(ctx, p.s, root, name)
		switch {
		case err != nil:
			return err
		case gate.State == GateClosed:
			continue
		case proposal.Dry && !p.r.Dry:
		case name != p.r.Replace:
			return fmt.Errorf("%w: %s", ErrOpen, name)
		case gate.State != GateHalted && gate.State != GateRefused:
			return fmt.Errorf("%w: %s has not halted", ErrOpen, name)
		}
		p.old = &openRollout{name, proposal, gate, stat}
		return nil
	}
	return errors.New("rollouts are opened and closed too fast")
}

// close makes the operations that close the open rollout. If ready has moved since
// that rollout was proposed, hosts follow ready already. Then it is superseded, and
// the new rollout starts from ready alone.
func (p *proposer) close() {
	o := p.old
	if o == nil {
		return
	}
	gate := o.gate
	gate.State, gate.Result, gate.By, gate.RolledBack = GateClosed, ResultReplaced, p.r.Who, p.r.RollbackOf != 0
	switch {
	case o.proposal.Dry:
	case o.proposal.Ready.Mzxid != p.proposal.Ready.Mzxid:
		gate.Result = ResultSuperseded
	default:
		p.proposal.Replaces = append([]string{o.name}, o.proposal.Replaces...)
	}
	root, data := p.r.Root, encode(gate.after(o.gate, time.UnixMilli(o.stat.Mtime)))
	p.size = len(data)
	p.closing = []session.Op{session.SetOp(gatePath(root, o.name), data, o.stat.Version), session.DeleteOp(config.CurrentPath(root), -1)}
}

// prepare builds the proposal from the current state.
func (p *proposer) prepare(ctx context.Context) error {
	ready, stat, err := config.ReadReady(ctx, p.s, p.r.Root)
	if err != nil {
		return err
	}
	if p.r.Base != 0 && ready.Version != p.r.Base {
		return &config.ConflictError{Path: p.r.Root, Want: p.r.Base, Have: ready.Version}
	}
	p.proposal = Proposal{
		Version: p.r.Version, Digest: p.r.Digest, Previous: ready.Version, Ready: ReadyAt{Version: stat.Version, Mzxid: stat.Mzxid},
		Delta: p.r.Delta, Dry: p.r.Dry, Who: p.r.Who, Why: p.r.Why, RollbackOf: p.r.RollbackOf,
		Created: time.Now(), // in nanoseconds: no other proposal is equal
	}
	if p.proposal.Delta != nil && p.proposal.Delta.From != ready.Digest {
		p.proposal.Delta = nil
	}
	return nil
}

// count refuses a proposal without voters.
func (p *proposer) count(shards map[string][]string) error {
	for _, ids := range shards {
		p.proposal.Hosts += len(ids)
	}
	if p.proposal.Hosts == 0 {
		return fmt.Errorf("%w: no agent subscribes to %s", ErrNobody, p.r.Root)
	}
	p.proposal.Strategy = p.r.Strategy.WithDefaults(p.proposal.Hosts)
	for _, id := range p.r.Strategy.Order {
		if !contains(shards[config.Shard(id)], id) {
			return fmt.Errorf("%w: canary %s does not subscribe to %s", ErrNobody, id, p.r.Root)
		}
	}
	return nil
}

// ops is the transaction that opens the rollout.
func (p *proposer) ops(shards map[string][]string) []session.Op {
	root := p.r.Root
	gate := Gate{State: GateVoting}
	ops := p.closing
	if !p.r.Dry {
		ops = append(ops, config.Absent(config.FreezePath(root))...)
	}
	ops = append(ops,
		session.CheckOp(config.ReadyPath(root), p.proposal.Ready.Version),
		session.CheckOp(config.VersionPath(root, p.proposal.Version), -1),
		session.SetOp(config.VersionsPath(root), nil, -1), // a garbage collection that runs starts over
		session.CreateOp(config.CurrentPath(root), []byte(p.name), session.Persistent),
		session.CreateOp(rolloutPath(root, p.name), encode(p.proposal), session.Persistent),
		session.CreateOp(gatePath(root, p.name), encode(gate), session.Persistent),
		session.CreateOp(progressPath(root, p.name), nil, session.Persistent),
		session.CreateOp(hostsPath(root, p.name), nil, session.Persistent),
		session.CreateOp(coordinatorPath(root, p.name), nil, session.Persistent))
	call := Call{Format: callFormat, Rollout: p.name, State: GateVoting, Proposal: p.proposal}
	var called []string
	size := len(encode(p.proposal)) + p.size
	for _, shard := range sortedKeys(shards) {
		size += len(encode(call)) + len(encode(Snapshot{IDs: shards[shard]}))
		if len(called) > 0 && size > maxCalls {
			break
		}
		called = append(called, shard)
		call.Elect += len(shards[shard])
	}
	for _, shard := range called {
		ops = append(ops, callOps(root, call, shard, shards[shard])...)
	}
	return ops
}

// callOps returns the operations that call one shard.
func callOps(root string, call Call, shard string, ids []string) []session.Op {
	return []session.Op{
		session.CreateOp(snapshotPath(root, call.Rollout, shard), encode(Snapshot{IDs: ids}), session.Persistent),
		session.SetOp(config.ShardPath(root, shard), encode(call), -1),
	}
}

// settle finds out after a lost reply whether the proposal was created.
func (p *proposer) settle(ctx context.Context) (bool, error) {
	if err := p.s.Sync(ctx, p.r.Root); err != nil {
		return false, err
	}
	data, _, err := p.s.Get(ctx, rolloutPath(p.r.Root, p.name))
	if err == nil && string(data) == string(encode(p.proposal)) {
		return false, nil
	}
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return false, err
	}
	return true, nil
}

// explain turns a failed transaction into an error that the proposer can act on.
func (p *proposer) explain(ctx context.Context, err error) (bool, error) {
	var multi *session.MultiError
	if !errors.As(err, &multi) {
		return false, err
	}
	switch {
	case multi.Path == config.VersionPath(p.r.Root, p.proposal.Version):
		return false, fmt.Errorf("version %d: %w", p.proposal.Version, config.ErrNoVersion)
	case multi.Path == config.FreezePath(p.r.Root) && errors.Is(err, session.ErrNodeExists):
		frozen, readErr := config.Frozen(ctx, p.s, p.r.Root)
		if readErr != nil || frozen != nil {
			return false, errors.Join(readErr, frozen)
		}
		return true, nil
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrNoNode):
		// ready has moved, a rollout was opened or closed, or a shard is gone.
		return true, nil
	}
	return false, err
}

// able splits the ids into those that are not in maintenance and those that are.
func able(subscriptions []config.Subscription) (able, aside []string) { //nolint:nonamedreturns // two lists of ids need names
	for _, sub := range subscriptions {
		if sub.State == config.StateMaintenance {
			aside = append(aside, sub.ID)
		} else {
			able = append(able, sub.ID)
		}
	}
	return able, aside
}

// CheckVoters returns [ErrNobody] when no host would check a version.
func CheckVoters(subscriptions []config.Subscription) error {
	can, aside := able(subscriptions)
	switch {
	case len(can) > 0:
		return nil
	case len(aside) > 0:
		return fmt.Errorf("%w: all subscribers are in maintenance: %s", ErrNobody, strings.Join(aside, ", "))
	}
	return fmt.Errorf("%w: no agent subscribes", ErrNobody)
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
