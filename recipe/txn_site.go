package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// Withdraw deletes the vote of a site's previous life. A site that restarts without a
// prepare record must call it first. It returns Undecided when there is no result yet:
// the site may then prepare and vote. Otherwise it returns the result, and the site must
// act on it. It leaves a vote that comes after the call.
func (x *Txn) Withdraw(ctx context.Context, site string) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	for former := int64(0); ; {
		ballots, _, err := x.s.Exists(ctx, x.proposal(p.ID))
		if err != nil {
			return Undecided, fmt.Errorf("withdraw vote: %w", err)
		}
		stat, exists, err := x.s.Exists(ctx, x.vote(site))
		if err != nil {
			return Undecided, fmt.Errorf("withdraw vote: %w", err)
		}
		if !exists || former != 0 && stat.Czxid != former {
			return x.Result(ctx)
		}
		former = stat.Czxid
		// The checks make sure that the vote is the one that was read, and was not
		// counted: after another ballot or a decision the multi fails.
		_, err = x.s.Multi(ctx, session.CheckOp(x.proposal(p.ID), ballots.Version), session.CheckOp(x.result(), 0), session.DeleteOp(x.vote(site), -1))
		if err != nil && (ctx.Err() != nil || !isRace(err) || x.removed(err) && errors.Is(err, session.ErrNoNode)) {
			return Undecided, fmt.Errorf("withdraw vote of %s: %w", site, err)
		}
		if d, err := x.Result(ctx); d != Undecided || err != nil {
			return d, err
		}
	}
}

// Vote creates the vote of a site. Call it when the prepare record is durable. After
// the decision, Vote returns the result with an error that matches ErrDecided. A second
// vote of the same session that says the same is no error.
func (x *Txn) Vote(ctx context.Context, site string, v Decision) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	if v != Commit && v != Abort || !slices.Contains(p.Sites, site) {
		return Undecided, fmt.Errorf("vote %q of %s in %s: %w", v, site, x.path, ErrNoSite)
	}
	for {
		_, err := x.s.Multi(ctx, x.ballot(p, site, v)...)
		switch {
		case err == nil:
			return Undecided, nil
		case errors.Is(err, session.ErrBadVersion):
			d, voteErr := x.Result(ctx)
			if voteErr == nil {
				voteErr = ErrDecided
			}
			return d, fmt.Errorf("vote of %s in %s: %w", site, x.path, voteErr)
		case errors.Is(err, session.ErrNodeExists):
			return Undecided, x.sameVote(ctx, site, v)
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown):
			return Undecided, fmt.Errorf("vote of %s in %s: %w", site, x.path, err)
		}
	}
}

// ballot returns the operations that create a vote. A vote of abort is set once after its
// create: so it has another version than a vote of commit, for which it cannot pass. The
// version of the proposal's own znode counts the ballots.
func (x *Txn) ballot(p Proposal, site string, v Decision) []session.Op {
	ops := []session.Op{
		session.SetOp(x.proposal(p.ID), nil, -1),
		session.CheckOp(x.result(), 0),
		session.CreateOp(x.vote(site), []byte(v), session.Ephemeral),
	}
	if v == Abort {
		ops = append(ops, session.SetOp(x.vote(site), []byte(v), 0))
	}
	return ops
}

// sameVote accepts an existing vote that this session made, after a lost reply or a
// repeated call.
func (x *Txn) sameVote(ctx context.Context, site string, v Decision) error {
	data, stat, err := x.s.Get(ctx, x.vote(site))
	if err != nil {
		return fmt.Errorf("read vote: %w", err)
	}
	if stat.EphemeralOwner != x.s.ID() || Decision(data) != v {
		return fmt.Errorf("vote of %s in %s: session %#x voted %q: %w",
			site, x.path, stat.EphemeralOwner, data, session.ErrNodeExists)
	}
	return nil
}

// AwaitOrAbort waits for the result, and decides abort itself when the deadline passes
// without one. A site calls it after its vote, so that it never waits for a coordinator
// that died.
func (x *Txn) AwaitOrAbort(ctx context.Context) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	bounded, cancel := context.WithDeadlineCause(ctx, p.Deadline, errDeadline)
	d, err := x.Await(bounded)
	cancel()
	if err == nil || ctx.Err() != nil || !errors.Is(err, errDeadline) {
		return d, err
	}
	return x.decide(ctx, p, Abort)
}

var errDeadline = fmt.Errorf("the transaction's deadline: %w", context.DeadlineExceeded)

// Coordinate decides the transaction: it waits for its turn among the coordinators,
// then for all votes, and returns the result. It aborts when a site votes abort, when a
// vote vanishes, and at the deadline. Any number of processes may coordinate one
// transaction. One works at a time, and the next one continues after its death.
func (x *Txn) Coordinate(ctx context.Context) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	participants, err := Candidates(x.path+"-latch", Curator, nil)
	if err != nil {
		return Undecided, err
	}
	participant, err := participants.Join(ctx, x.s, nil)
	if err != nil {
		return Undecided, fmt.Errorf("coordinate %s: %w", x.path, err)
	}
	defer participant.Abandon()
	if err := participant.Wait(ctx); err != nil {
		return Undecided, fmt.Errorf("coordinate %s: %w", x.path, err)
	}
	return x.coordinate(ctx, p)
}

// coordinate counts votes until it can decide. Two at once do no harm: the result is
// set only once.
func (x *Txn) coordinate(ctx context.Context, p Proposal) (Decision, error) {
	bounded, cancel := context.WithDeadlineCause(ctx, p.Deadline, errDeadline)
	defer cancel()
	seen := map[string]bool{}
	for {
		names, _, watch, err := x.s.ChildrenW(ctx, x.path)
		if err != nil {
			return Undecided, fmt.Errorf("coordinate %s: %w", x.path, err)
		}
		d, err := x.count(ctx, p, names, seen)
		if err != nil || d != Undecided {
			watch.Stop()
			return d, err
		}
		if err := watch.Wait(bounded); errors.Is(err, errDeadline) && ctx.Err() == nil {
			return x.decide(ctx, p, Abort)
		} else if err != nil {
			return Undecided, err
		}
	}
}

// count decides if the votes allow it. Undecided means that votes are missing.
func (x *Txn) count(ctx context.Context, p Proposal, names []string, seen map[string]bool) (Decision, error) {
	if d, err := x.Result(ctx); d != Undecided || err != nil {
		return d, err
	}
	var fresh, paths []string
	checks := make([]session.Op, len(p.Sites))
	for i, site := range p.Sites {
		checks[i] = session.CheckOp(x.vote(site), 0)
		switch present := slices.Contains(names, site); {
		case seen[site] && !present:
			return x.decide(ctx, p, Abort) // it died between its vote and the decision
		case present && !seen[site]:
			fresh, paths = append(fresh, site), append(paths, x.vote(site))
		}
	}
	votes, err := x.s.GetMany(ctx, paths)
	if err != nil {
		return Undecided, fmt.Errorf("read votes: %w", err)
	}
	for i, vote := range votes {
		switch {
		case vote.Err != nil && !errors.Is(vote.Err, session.ErrNoNode):
			return Undecided, fmt.Errorf("read vote of %s: %w", fresh[i], vote.Err)
		case vote.Err != nil, Decision(vote.Data) != Commit:
			return x.decide(ctx, p, Abort)
		}
		seen[fresh[i]] = true
	}
	if len(seen) < len(p.Sites) {
		return Undecided, nil
	}
	d, err := x.decide(ctx, p, Commit, checks...)
	if err == nil && d == Undecided {
		return x.decide(ctx, p, Abort) // a vote vanished in between
	}
	return d, err
}
