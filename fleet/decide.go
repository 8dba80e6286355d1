package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// decide collects votes until they say what to do and records it, once. Any
// abort decides abort; commit needs every participant's vote, or, when the
// proposal says that absent ones are skipped, those of all present ones at
// the deadline.
func (c *coordinator) decide(ctx context.Context, state *State) (*Decision, error) {
	elapsed, err := c.elapsed(ctx, state.Created)
	if err != nil {
		return nil, err
	}
	deadline := time.NewTimer(time.Duration(state.Proposal.Strategy.VoteTimeout) - elapsed)
	defer deadline.Stop()
	expired := false
	votes := map[string]Vote{}
	for {
		verdict, watches, err := c.collect(ctx, state, votes, expired)
		if err != nil {
			return nil, err
		}
		if verdict != nil {
			stopAll(watches)
			return c.record(ctx, state, *verdict)
		}
		select {
		case <-watches[0].C():
		case <-watches[1].C():
		case <-deadline.C:
			expired = true
		case <-ctx.Done():
			stopAll(watches)
			return nil, context.Cause(ctx)
		}
		stopAll(watches)
	}
}

// collect reads new votes and control; a nil verdict means: not yet.
func (c *coordinator) collect(ctx context.Context, state *State, votes map[string]Vote, expired bool) (*Decision, []*session.Watch, error) {
	children, _, watchVotes, err := c.session.ChildrenW(ctx, votesPath(c.root, c.name))
	if err != nil {
		return nil, nil, err
	}
	data, _, watchControl, err := c.session.GetW(ctx, controlPath(c.root, c.name))
	if err != nil {
		watchVotes.Stop()
		return nil, nil, err
	}
	watches := []*session.Watch{watchVotes, watchControl}
	control, err := decode[Control](controlPath(c.root, c.name), data)
	if err == nil {
		err = c.readVotes(ctx, children, votes)
	}
	if err != nil {
		stopAll(watches)
		return nil, nil, err
	}
	return judge(state.Proposal, control, votes, expired), watches, nil
}

func (c *coordinator) readVotes(ctx context.Context, children []string, votes map[string]Vote) error {
	var fresh []string
	for _, id := range children {
		if _, known := votes[id]; !known {
			fresh = append(fresh, id)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	records, err := readChildren[Vote](ctx, c.session, votesPath(c.root, c.name), fresh)
	maps.Copy(votes, records)
	return err
}

// judge is the rule of the decision; nil: wait on.
func judge(p Proposal, control Control, votes map[string]Vote, expired bool) *Decision {
	if control.Action == ActionAbort {
		return &Decision{Reason: orDefault(control.Reason, "aborted by "+control.By)}
	}
	var refused, absent, skipped []string
	for _, id := range p.Participants {
		v, voted := votes[id]
		switch {
		case !voted:
			absent = append(absent, id)
		case v.Skip:
			skipped = append(skipped, id)
		case !v.Commit:
			refused = append(refused, id+": "+v.Reason)
		}
	}
	switch {
	case len(refused) > 0:
		return &Decision{Reason: clipTo(strings.Join(refused, "\n"), maxReasons)}
	case len(absent) > 0 && !expired:
		return nil
	case len(absent) == 0 && len(skipped) > 0 && len(skipped) == len(p.Participants):
		return &Decision{Reason: ErrNobody.Error()}
	case len(absent) == 0 || p.Strategy.Absent == AbsentSkip:
		return &Decision{Commit: true, Skipped: append(skipped, absent...)}
	}
	return &Decision{Reason: fmt.Sprintf("no vote within %s from %s", time.Duration(p.Strategy.VoteTimeout), clipTo(strings.Join(absent, ", "), maxReasons))}
}

// maxReasons bounds the words of all hosts together, so that the decision of
// a large fleet fits into a request; the votes have the rest.
const maxReasons = 64 << 10

// record writes the decision once; a commit flips ready in the same multi.
// Whatever the outcome, what is recorded in ZooKeeper is what counts.
func (c *coordinator) record(ctx context.Context, state *State, d Decision) (*Decision, error) {
	d.By = c.agent
	if d.Commit && state.Proposal.Strategy.Gate != "" {
		members, _, err := c.session.Children(ctx, state.Proposal.Strategy.Gate)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return nil, err
		}
		d.Members = len(members)
	}
	_, err := c.session.Multi(ctx, c.decisionOps(state.Proposal, d)...)
	switch {
	case err == nil:
		return &d, nil
	case errors.Is(err, session.ErrUnknown), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrBadVersion):
		return c.recorded(ctx, state, err)
	}
	return nil, fmt.Errorf("decide: %w", err)
}

func (c *coordinator) decisionOps(p Proposal, d Decision) []session.Op {
	ops := []session.Op{
		session.CheckOp(rolloutPath(c.root, c.name), -1),
		c.term.Guard(),
		session.CreateOp(decisionPath(c.root, c.name), encode(d), session.Persistent),
	}
	if !d.Commit {
		return ops
	}
	ready := config.Ready{Version: p.Version, Digest: p.Digest, Previous: p.Previous, Rollout: c.name}
	return append(ops,
		session.CreateOp(freezePath(c.root), nil, session.Persistent),
		session.DeleteOp(freezePath(c.root), -1),
		session.SetOp(readyPath(c.root), ready.Encode(), p.Ready))
}

// recorded reads what was decided after a multi that failed or whose reply
// was lost; when nothing was, a commit that cannot be any more becomes abort.
func (c *coordinator) recorded(ctx context.Context, state *State, cause error) (*Decision, error) {
	if err := c.session.Sync(ctx, c.root); err != nil {
		return nil, err
	}
	data, _, err := c.session.Get(ctx, decisionPath(c.root, c.name))
	if err == nil {
		return pointer[Decision](data)
	}
	if !errors.Is(err, session.ErrNoNode) {
		return nil, err
	}
	switch {
	case errors.Is(cause, session.ErrBadVersion):
		return c.record(ctx, state, Decision{Reason: ResultSuperseded + ": another version was published meanwhile"})
	case errors.Is(cause, session.ErrNodeExists):
		reason, _, err := c.session.Get(ctx, freezePath(c.root))
		if err != nil {
			return nil, cause // the freeze was lifted: again
		}
		return c.record(ctx, state, Decision{Reason: "frozen: " + string(reason)})
	}
	return nil, cause
}

func stopAll(watches []*session.Watch) {
	for _, w := range watches {
		w.Stop()
	}
}
