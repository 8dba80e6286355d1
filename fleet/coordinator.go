package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/session"
)

// maxContenders bounds how many agents contend for the coordinator's part.
const maxContenders = 7

// contend takes part in the election of the coordinator until ctx ends, as
// one of the first by a hash of names, or later when places are free.
func (p *Participant) contend(ctx context.Context, s *session.Session, name string) error {
	proposal, err := readProposal(ctx, s, p.cfg.Root, name)
	if err != nil {
		return ignoreGone(err)
	}
	first := rank(name, p.cfg.Agent, proposal.Participants) < maxContenders
	for ctx.Err() == nil && !first {
		if !pause(ctx, s.Timeout()+rand.N(s.Timeout())) { //nolint:gosec // the delay is no secret
			return nil
		}
		children, _, err := s.Children(ctx, coordinatorPath(p.cfg.Root))
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return err
		}
		first = len(children) < maxContenders
	}
	if ctx.Err() != nil {
		return nil
	}
	candidate := election.New(election.Config{
		Name: name, Path: coordinatorPath(p.cfg.Root), ID: p.cfg.Agent, Logger: p.log,
		Lead: func(ctx context.Context, t election.Term) {
			c := &coordinator{root: p.cfg.Root, name: name, agent: p.cfg.Agent, session: s, term: t, missing: map[string]time.Time{}}
			p.insist(ctx, s, name, "coordinate", func(ctx context.Context, _ *session.Session, _ string) error { return c.run(ctx) })
		},
	})
	err = candidate.Run(ctx, s, nil)
	// A candidate keeps its place when its context ends; ours must not stand
	// before those of the next rollout.
	resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout())
	defer cancel()
	if resignErr := candidate.Resign(resign); err == nil && s.Context().Err() == nil {
		err = resignErr
	}
	return err
}

// rank is the place of the agent among the participants in an order that
// differs from rollout to rollout; one that is no participant comes last.
func rank(rollout, agent string, participants []string) int {
	if !contains(participants, agent) {
		return len(participants) + maxContenders
	}
	hash := func(id string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(rollout + "/" + id))
		return h.Sum64()
	}
	own, before := hash(agent), 0
	for _, id := range participants {
		if h := hash(id); h < own || h == own && id < agent {
			before++
		}
	}
	return before
}

// coordinator decides one rollout and sees it to its end. Its fields are
// touched by run alone; everything that must survive it is in ZooKeeper.
type coordinator struct {
	root, name, agent string
	session           *session.Session
	term              election.Term

	// missing says since when an active host has no subscriber znode, and
	// baked when the canaries were seen done: both begin anew with each
	// coordinator, which only makes it wait longer.
	missing map[string]time.Time
	baked   time.Time
	bakedAt int32 // version of the hosts znode at that moment: a start changes it
}

// run decides and then watches over the activation.
func (c *coordinator) run(ctx context.Context) error {
	state, err := Read(ctx, c.session, c.root, c.name)
	if err != nil {
		return ignoreGone(err)
	}
	if state.Done != nil {
		return c.clearCurrent(ctx)
	}
	if state.Decision == nil {
		if state.Decision, err = c.decide(ctx, state); err != nil {
			return err
		}
	}
	if !state.Decision.Commit {
		result := ResultAborted
		if strings.HasPrefix(state.Decision.Reason, ResultSuperseded) {
			result = ResultSuperseded
		}
		return c.close(ctx, Done{Result: result, Reason: state.Decision.Reason})
	}
	return c.oversee(ctx, state)
}

// close ends the rollout in one step.
func (c *coordinator) close(ctx context.Context, d Done) error {
	_, err := c.session.Multi(ctx,
		c.term.Guard(),
		session.CreateOp(donePath(c.root, c.name), encode(d), session.Persistent),
		session.DeleteOp(currentPath(c.root), -1))
	if errors.Is(err, session.ErrNodeExists) {
		return c.clearCurrent(ctx)
	}
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	// Old records cost nothing but room: the next rollout tries again.
	_ = c.sweep(ctx)
	return nil
}

// clearCurrent takes the name of a closed rollout away, should it still be
// there; never that of another.
func (c *coordinator) clearCurrent(ctx context.Context) error {
	data, stat, err := c.session.Get(ctx, currentPath(c.root))
	if err != nil || string(data) != c.name {
		return ignoreGone(err)
	}
	return ignoreGone(c.session.Delete(ctx, currentPath(c.root), stat.Version))
}

// elapsed is how long ago the proposal was made, in ZooKeeper's time: the
// time of a write of ours less that of the proposal.
func (c *coordinator) elapsed(ctx context.Context, created time.Time) (time.Duration, error) {
	data, _, err := c.session.Get(ctx, c.term.Path)
	if err != nil {
		return 0, err
	}
	stat, err := c.session.Set(ctx, c.term.Path, data, -1)
	if err != nil && !errors.Is(err, session.ErrUnknown) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.UnixMilli(stat.Mtime).Sub(created), nil
}

// sortedKeys returns the keys of a map in order, for words that people read.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
