package recipe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
)

// Two-phase commit.
//
// Steps (ZooKeeper Recipes, "Two-phased Commit"): a proposal creates the
// transaction and the empty result in one multi. Each site prepares durably and
// creates its vote. A vote of abort is set once, so its version is 1. The coordinator
// decides: commit in one multi that checks the proposal and version 0 of every vote, and
// sets the result at version 0; abort without the checks of the votes.
//
// Deviation from the recipe: the sites write their own votes as ephemerals, so that
// the coordinator notices a crash before the decision.

// Decision is the result of a transaction, or a vote.
type Decision string

// The decisions. Undecided means that there is no result yet.
const (
	Undecided Decision = ""
	Commit    Decision = "commit"
	Abort     Decision = "abort"
)

const (
	resultName     = "tx_result"
	proposalPrefix = "p_" // before the id of a proposal
)

// Proposal names the sites that decide a transaction, and the deadline.
type Proposal struct {
	Sites []string `json:"sites"` // that vote; each named once
	// Deadline is the time after which any site may abort, by the site's own clock.
	Deadline time.Time `json:"deadline"`
	// ID tells this proposal from others at the same path. Propose sets it.
	ID string `json:"id,omitempty"`
}

// Txn is one transaction at a path. It may be used by coordinators and sites.
type Txn struct {
	s    *session.Session
	path string
}

// NewTxn returns the transaction at path (<root>/<tx>). It does no I/O.
func NewTxn(s *session.Session, path string) *Txn { return &Txn{session.Usable(s, path), path} }

func (x *Txn) result() string          { return child(x.path, resultName) }
func (x *Txn) vote(site string) string { return child(x.path, site) }

// proposal returns the path of the znode that stands only for this proposal.
func (x *Txn) proposal(id string) string { return child(x.path, proposalPrefix+id) }

// Propose creates the transaction. It returns session.ErrNodeExists when the
// transaction already exists.
func (x *Txn) Propose(ctx context.Context, p Proposal) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("propose %s: %w", x.path, err)
	}
	p.ID = newHex()
	data, err := json.Marshal(p)
	if err == nil {
		err = withParents(ctx, x.s, x.path, func() error { return x.create(ctx, p.ID, data) })
	}
	if err != nil {
		return fmt.Errorf("propose %s: %w", x.path, err)
	}
	return nil
}

// create creates the transaction and its empty result, once. After a lost reply the id
// shows whether the create was applied.
func (x *Txn) create(ctx context.Context, id string, data []byte) error {
	for {
		_, err := x.s.Multi(ctx,
			session.CreateOp(x.path, data, session.Persistent),
			session.CreateOp(x.result(), nil, session.Persistent),
			session.CreateOp(x.proposal(id), nil, session.Persistent))
		if !errors.Is(err, session.ErrUnknown) || ctx.Err() != nil {
			return err
		}
		if _, _, err = lookAgain(ctx, x.s, x.path); err != nil {
			return err
		}
		p, err := x.Proposal(ctx)
		switch {
		case errors.Is(err, session.ErrNoNode):
			continue
		case err == nil && p.ID != id:
			return session.ErrNodeExists
		}
		return err
	}
}

func (p Proposal) check() error {
	if len(p.Sites) == 0 {
		return fmt.Errorf("no sites: %w", ErrFormat)
	}
	sites := slices.Sorted(slices.Values(p.Sites))
	if len(slices.Compact(sites)) != len(p.Sites) {
		return fmt.Errorf("a site is named twice: %w", ErrFormat)
	}
	for _, site := range p.Sites {
		if site == resultName || strings.HasPrefix(site, proposalPrefix) || session.ValidatePath("/"+site) != nil || base("/"+site) != site {
			return fmt.Errorf("site %q: %w", site, ErrFormat)
		}
	}
	return nil
}

// Proposal reads the proposal of the transaction.
func (x *Txn) Proposal(ctx context.Context) (Proposal, error) {
	data, err := x.read(ctx, x.path)
	if err != nil {
		return Proposal{}, fmt.Errorf("read transaction: %w", err)
	}
	var p Proposal
	if err := json.Unmarshal(data, &p); err != nil {
		return Proposal{}, fmt.Errorf("read transaction %s: %w: %w", x.path, ErrFormat, err)
	}
	return p, p.check()
}

// read reads a znode of the transaction. Sites learn of the transaction from its
// proposer, so a server that lags may not know it yet: read syncs and tries again.
func (x *Txn) read(ctx context.Context, path string) ([]byte, error) {
	data, _, err := x.s.Get(ctx, path)
	if errors.Is(err, session.ErrNoNode) {
		if err = x.s.Sync(ctx, path); err == nil {
			data, _, err = x.s.Get(ctx, path)
		}
	}
	return data, err
}

// Result returns the current decision.
func (x *Txn) Result(ctx context.Context) (Decision, error) {
	data, err := x.read(ctx, x.result())
	if err != nil {
		return Undecided, fmt.Errorf("read result: %w", err)
	}
	return decision(data)
}

func decision(data []byte) (Decision, error) {
	switch d := Decision(data); d {
	case Undecided, Commit, Abort:
		return d, nil
	}
	return Undecided, fmt.Errorf("%w: decision %.20q", ErrFormat, data)
}

// Await waits for the result. Only a coordinator or an abort decides, so without them Await
// waits until ctx ends.
func (x *Txn) Await(ctx context.Context) (Decision, error) {
	if _, err := x.read(ctx, x.result()); err != nil {
		return Undecided, fmt.Errorf("await result: %w", err)
	}
	for {
		data, _, watch, err := x.s.GetW(ctx, x.result())
		if err != nil {
			return Undecided, fmt.Errorf("await result: %w", err)
		}
		d, err := decision(data)
		if d != Undecided || err != nil {
			watch.Stop()
			return d, err
		}
		if err := watch.Wait(ctx); err != nil {
			return Undecided, fmt.Errorf("await result of %s: %w", x.path, err)
		}
	}
}

// decide sets the result, unless there is one, and returns the result that counts. The
// proposal must be the same, and the checks must hold in the same instant. It returns
// Undecided without an error when the checks did not.
func (x *Txn) decide(ctx context.Context, p Proposal, d Decision, checks ...session.Op) (Decision, error) {
	// The first check fails when the transaction was removed, also when another one was
	// proposed at its path.
	ops := append([]session.Op{session.CheckOp(x.proposal(p.ID), -1)}, checks...)
	for {
		_, err := x.s.Multi(ctx, append(ops, session.SetOp(x.result(), []byte(d), 0))...)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, session.ErrUnknown) && ctx.Err() == nil:
			// Send it again. If it was applied, the version of the result is another now.
		case x.removed(err):
			return Undecided, fmt.Errorf("decide %s: the transaction was removed: %w", x.path, err)
		case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNoNode):
			return x.Result(ctx)
		default:
			return Undecided, fmt.Errorf("decide %s: %w", x.path, err)
		}
	}
}

// removed reports whether the check of the proposal has failed.
func (x *Txn) removed(err error) bool {
	failed, ok := errors.AsType[*session.MultiError](err)
	return ok && strings.HasPrefix(failed.Path, x.proposal(""))
}

// Abort decides abort, unless there is a result, and returns the result that counts.
// Coordinators may call it at any time, sites after the deadline.
func (x *Txn) Abort(ctx context.Context) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	return x.decide(ctx, p, Abort)
}

// Remove deletes a decided transaction, with its remaining votes. It returns an error
// that matches ErrHeld when the transaction is not decided yet. A transaction that does
// not exist is no error, so Remove can be called again after any failure.
func (x *Txn) Remove(ctx context.Context) error {
	err := x.s.Sync(ctx, x.path)
	for err == nil || errors.Is(err, session.ErrNoNode) {
		var names []string
		if names, _, err = x.s.Children(ctx, x.path); errors.Is(err, session.ErrNoNode) {
			// The line of the coordinators stays while one waits in it, until the next Remove.
			if err = removeOwn(ctx, x.s, x.path+"-latch"); errors.Is(err, session.ErrNotEmpty) {
				err = nil
			}
			break
		}
		if err == nil {
			err = x.remove(ctx, names)
		}
		if err == nil || ctx.Err() == nil && (isRace(err) || errors.Is(err, session.ErrNotEmpty)) {
			err = nil // look again
		}
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", x.path, err)
	}
	return nil
}

// remove deletes the transaction with these children in one multi. It fails when they
// have changed: another transaction at the same path has another proposal.
func (x *Txn) remove(ctx context.Context, names []string) error {
	d, err := x.Result(ctx)
	switch {
	case errors.Is(err, session.ErrNoNode): // an interrupted Remove of an older version
	case err != nil:
		return err
	case d == Undecided:
		return fmt.Errorf("undecided: %w", ErrHeld)
	}
	ops := lists.Map(names, func(name string) session.Op { return session.DeleteOp(child(x.path, name), -1) })
	_, err = x.s.Multi(ctx, append(ops, session.DeleteOp(x.path, -1))...)
	return err
}

// Withdraw deletes the vote of a site's previous life. A site that restarts without a
// prepare record must call it first. It returns Undecided when there is no result yet:
// the site may then prepare and vote. Otherwise it returns the result, and the site must
// act on it. It leaves a vote that comes after the call.
func (x *Txn) Withdraw(ctx context.Context, site string) (Decision, error) {
	p, err := x.Proposal(ctx)
	if err != nil {
		return Undecided, err
	}
	for previous := int64(0); ; {
		ballots, _, err := x.s.Exists(ctx, x.proposal(p.ID))
		if err != nil {
			return Undecided, fmt.Errorf("withdraw vote: %w", err)
		}
		stat, exists, err := x.s.Exists(ctx, x.vote(site))
		if err != nil {
			return Undecided, fmt.Errorf("withdraw vote: %w", err)
		}
		if !exists || previous != 0 && stat.Czxid != previous {
			return x.Result(ctx)
		}
		previous = stat.Czxid
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

// Vote creates the vote of a site. Call it when the prepare record is durable. Before the
// decision it returns Undecided, so wait for the result with [Txn.AwaitOrAbort]. After the
// decision it returns the result with an error that matches ErrDecided. A second vote of
// the same session that says the same is no error.
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
			voteErr = cmp.Or(voteErr, ErrDecided)
			return d, fmt.Errorf("vote of %s in %s: %w", site, x.path, voteErr)
		case errors.Is(err, session.ErrNodeExists): // after a lost reply or a repeated call it is ours
			data, stat, err := x.s.Get(ctx, x.vote(site))
			if err == nil && (stat.EphemeralOwner != x.s.ID() || Decision(data) != v) {
				err = fmt.Errorf("session %#x voted %q: %w", stat.EphemeralOwner, data, session.ErrNodeExists)
			}
			if err != nil {
				err = fmt.Errorf("vote of %s in %s: %w", site, x.path, err)
			}
			return Undecided, err
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
	// Two at once do no harm: the result is set only once.
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
