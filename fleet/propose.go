package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Request proposes a version that is written and not in use.
type Request struct {
	Root     string // root znode of the tree
	Version  int64
	Digest   string
	Delta    *trees.Delta // to the version in use; nil: hosts read the version
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
	// Dry asks every host which files the version would change. No host ever uses it.
	Dry bool
}

const (
	// maxCalls bounds the proposal, with the calls that it makes itself and the
	// gate that it closes, in bytes. The coordinator makes the rest.
	maxCalls = 400 << 10
	// maxProposal bounds a proposal, which is in every call, in bytes.
	maxProposal = 128 << 10
)

// Propose opens a rollout and returns its name. It creates everything in one
// transaction. The error matches [ErrOpen], [ErrNobody], [ErrFrozen], [ErrConflict]
// when Base is not in use, or an error of the session.
func Propose(ctx context.Context, s *session.Session, r Request) (string, error) {
	if err := (RolloutConfig{Strategy: r.Strategy}).Check(); err != nil {
		return "", fmt.Errorf("propose: %w", err)
	}
	if err := s.CreateParents(ctx, currentPath(r.Root)); err != nil {
		return "", fmt.Errorf("propose: %w", err)
	}
	var p *proposer
	final := func(path string, err error) bool {
		return path == trees.VersionPath(r.Root, r.Version) || path == trees.FreezePath(r.Root) && errors.Is(err, session.ErrNodeExists)
	}
	err := transactUntil(ctx, s, r.Root, final, func(lost bool) ([]session.Op, error) {
		if lost {
			data, _, err := s.Get(ctx, rolloutPath(r.Root, p.name))
			if made := err == nil && string(data) == string(encode(p.proposal)); made || ignore(err, session.ErrNoNode) != nil {
				return nil, err
			}
		}
		p = &proposer{s: s, r: r}
		if err := p.look(ctx); err != nil {
			return nil, err
		}
		shards, err := subscriberIDs(ctx, s, r.Root)
		if err != nil {
			return nil, err
		}
		return p.open(ctx, shards)
	})
	switch path := failedAt(err); {
	case err == nil:
		return p.name, nil
	case path == trees.VersionPath(r.Root, r.Version):
		err = fmt.Errorf("version %d: %w", r.Version, config.ErrNoVersion)
	case path == trees.FreezePath(r.Root):
		err = frozenError(ctx, s, r.Root)
	}
	return "", fmt.Errorf("propose: %w", err)
}

type proposer struct {
	s        *session.Session
	r        Request
	name     string
	proposal Proposal
	closing  []session.Op // closes the open rollout
	size     int          // of the gate that closes it, in bytes
	epoch    int32        // version of versions
}

func (p *proposer) look(ctx context.Context) error {
	// What has to be closed: the rollout that is replaced, or a dry run.
	open, err := Opened(ctx, p.s, p.r.Root)
	switch {
	case err != nil || open == nil || open.Proposal.Dry && !p.r.Dry:
	case open.Name != p.r.Replace:
		return fmt.Errorf("%w: %s", ErrOpen, open.Name)
	default:
		err = open.replaceable()
	}
	if err == nil {
		err = p.prepare(ctx)
	}
	if err != nil || open == nil {
		return err
	}
	// If ready has moved since the open rollout was proposed, hosts follow ready already. Then
	// it is superseded, and the new rollout starts from ready alone.
	result := ResultReplaced
	switch {
	case open.Proposal.Dry:
	case open.Proposal.Ready.Mzxid != p.proposal.Ready.Mzxid:
		result = ResultSuperseded
	default:
		p.proposal.Replaces = append([]string{open.Name}, open.Proposal.Replaces...)
	}
	p.closing = open.close(result, p.r.Who, p.r.RollbackOf != 0)
	p.size = len(encode(open.Gate))
	return nil
}

// open returns the operations that open the rollout for subscribers, by shard.
func (p *proposer) open(ctx context.Context, shards map[string][]string) ([]session.Op, error) {
	ids := slices.Concat(slices.Collect(maps.Values(shards))...)
	if err := mustVote(p.r.Root, ids, p.r.Strategy.Order); err != nil {
		return nil, err
	}
	p.proposal.Hosts, p.proposal.Strategy = len(ids), p.r.Strategy.WithDefaults(len(ids))
	if p.name = dryName(p.r.Version); !p.r.Dry {
		names, err := Names(ctx, p.s, p.r.Root)
		if err != nil {
			return nil, err
		}
		last := int64(-1)
		if len(names) > 0 {
			last, _ = rolloutNumber(names[len(names)-1])
		}
		p.name = rolloutName(last + 1)
	}
	if n := len(encode(p.proposal)); n > maxProposal {
		return nil, fmt.Errorf("the proposal has %d bytes, at most %d are allowed: name fewer canaries or write a shorter message: %w", n, maxProposal, config.ErrBounds)
	}
	return p.ops(shards), nil
}

func (p *proposer) prepare(ctx context.Context) error {
	// Before ready: a ready that was deleted and made again has the version of the first
	// one, but Delete has changed versions.
	versions, _, err := p.s.Exists(ctx, trees.VersionsPath(p.r.Root))
	if err != nil {
		return err
	}
	p.epoch = versions.Version
	ready, stat, err := trees.ReadReady(ctx, p.s, p.r.Root)
	if err != nil {
		return err
	}
	if p.r.Base != 0 && ready.Version != p.r.Base {
		return &ConflictError{Path: p.r.Root, Want: p.r.Base, Have: ready.Version}
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

func (p *proposer) ops(shards map[string][]string) []session.Op {
	root := p.r.Root
	ops := p.closing
	if !p.r.Dry {
		ops = append(ops, absent(trees.FreezePath(root))...)
	}
	ops = append(ops,
		session.CheckOp(trees.ReadyPath(root), p.proposal.Ready.Version),
		session.CheckOp(trees.VersionPath(root, p.proposal.Version), -1),
		session.SetOp(trees.VersionsPath(root), nil, p.epoch), // a garbage collection that runs starts over
		session.CreateOp(currentPath(root), []byte(p.name), session.Persistent),
		session.CreateOp(rolloutPath(root, p.name), encode(p.proposal), session.Persistent),
		session.CreateOp(gatePath(root, p.name), encode(Gate{State: GateVoting}), session.Persistent),
		session.CreateOp(progressPath(root, p.name), nil, session.Persistent),
		session.CreateOp(hostsPath(root, p.name), nil, session.Persistent),
		session.CreateOp(coordinatorPath(root, p.name), nil, session.Persistent))
	call := shardCall{Format: callFormat, Rollout: p.name, State: GateVoting, Proposal: p.proposal}
	var called []string
	size := len(encode(p.proposal)) + p.size
	for _, shard := range sortedKeys(shards) {
		size += len(encode(call)) + len(encode(shardHosts{IDs: shards[shard]}))
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

func callOps(root string, call shardCall, shard string, ids []string) []session.Op {
	return []session.Op{
		session.CreateOp(snapshotPath(root, call.Rollout, shard), encode(shardHosts{IDs: ids}), session.Persistent),
		session.SetOp(shardPath(root, shard), encode(call), -1),
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
