package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Two-phase commit.
//
//	<root>/<tx>             persistent, JSON: sites and deadline
//	<root>/<tx>/tx_result   persistent, empty until decided, then commit or abort
//	<root>/<tx>/<site>      ephemeral, data = commit or abort, made by the site
//	<root>/<tx>-latch/...   the line of the coordinators, beside the transaction
//
// Steps (ZooKeeper Recipes, "Two-phased Commit"): a proposal creates the
// transaction and the empty result in one multi. Each site prepares durably and
// creates its vote. The coordinator decides: commit in one multi that checks
// every vote and sets the result at version 0, abort by the set alone.
//
// Guarantees: there is one result, whoever decides, because it is set at version
// 0; commit only while every site's vote of commit stands, in one instant. Not
// guaranteed: that a site which voted commit learns the result soon: it may not
// act on its own until it has read it. Rule for sites: write the prepare record
// before voting; after a restart without it, Withdraw before anything else.
//
// Deviation from the recipe: votes are written by the sites themselves as
// ephemerals, so that a crash before the decision is seen.

// Decision is the result of a transaction, or a vote.
type Decision string

// The decisions. Undecided is no result yet.
const (
	Undecided Decision = ""
	Commit    Decision = "commit"
	Abort     Decision = "abort"
)

const resultName = "tx_result"

// Proposal is what a transaction is about to be decided by.
type Proposal struct {
	Sites []string `json:"sites"` // that vote; each named once
	// Deadline is when any site may abort; by the clock of who looks.
	Deadline time.Time `json:"deadline"`
	// ID tells after a lost reply whose proposal stands. Propose sets it.
	ID string `json:"id,omitempty"`
}

// Txn is one transaction at a path. It may be used by coordinators and sites.
type Txn struct {
	s    *session.Session
	path string
}

// NewTxn returns the transaction at path (<root>/<tx>). It does no I/O.
func NewTxn(s *session.Session, path string) *Txn { return &Txn{s, path} }

func (x *Txn) result() string          { return child(x.path, resultName) }
func (x *Txn) vote(site string) string { return child(x.path, site) }

// Propose creates the transaction. It returns session.ErrNodeExists when there
// is one already.
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

// create creates the transaction and its empty result, once: after a lost reply
// the id tells.
func (x *Txn) create(ctx context.Context, id string, data []byte) error {
	for {
		_, err := x.s.Multi(ctx,
			session.CreateOp(x.path, data, session.Persistent),
			session.CreateOp(x.result(), nil, session.Persistent))
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
		if site == resultName || session.ValidatePath("/"+site) != nil || base("/"+site) != site {
			return fmt.Errorf("site %q: %w", site, ErrFormat)
		}
	}
	return nil
}

// Proposal reads what the transaction is about.
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

// read reads a znode of the transaction. Sites hear of it from its proposer, so
// that a server which lags may not know of it yet.
func (x *Txn) read(ctx context.Context, path string) ([]byte, error) {
	data, _, err := x.s.Get(ctx, path)
	if errors.Is(err, session.ErrNoNode) {
		if err = x.s.Sync(ctx, path); err == nil {
			data, _, err = x.s.Get(ctx, path)
		}
	}
	return data, err
}

// Result returns the decision as it stands.
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

// Await waits for the result.
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

// decide sets the result, unless there is one, and returns what then stands.
// The checks must hold in the same instant; applied false with no decision means
// that they did not.
func (x *Txn) decide(ctx context.Context, d Decision, checks ...session.Op) (Decision, error) {
	for {
		_, err := x.s.Multi(ctx, append(slices.Clip(checks), session.SetOp(x.result(), []byte(d), 0))...)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, session.ErrUnknown) && ctx.Err() == nil:
			// Whoever set it, the result tells. Empty: ours was not applied.
			if syncErr := x.s.Sync(ctx, x.result()); syncErr != nil {
				return Undecided, fmt.Errorf("decide %s: %w", x.path, syncErr)
			}
		case !errors.Is(err, session.ErrBadVersion) && !errors.Is(err, session.ErrNoNode):
			return Undecided, fmt.Errorf("decide %s: %w", x.path, err)
		}
		stands, rerr := x.Result(ctx)
		if rerr != nil || stands != Undecided || !errors.Is(err, session.ErrUnknown) {
			return stands, rerr
		}
	}
}

// Abort decides abort, unless there is a result already, and returns the result
// that stands. Coordinators may always; sites after the deadline.
func (x *Txn) Abort(ctx context.Context) (Decision, error) { return x.decide(ctx, Abort) }

// Remove deletes a transaction that is decided, with what is left of its votes.
// It returns an error that matches ErrHeld when it is not decided yet.
func (x *Txn) Remove(ctx context.Context) error {
	d, err := x.Result(ctx)
	if errors.Is(err, session.ErrNoNode) {
		return nil
	}
	if err == nil && d == Undecided {
		err = fmt.Errorf("undecided: %w", ErrHeld)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", x.path, err)
	}
	names, _, err := x.s.Children(ctx, x.path)
	if err != nil {
		return fmt.Errorf("remove: list %s: %w", x.path, err)
	}
	for _, name := range names {
		if err := removeOwn(ctx, x.s, x.vote(name)); err != nil {
			return err
		}
	}
	// A coordinator that is still in line leaves the line to the next Remove.
	if err := removeOwn(ctx, x.s, x.path+"-latch"); err != nil && !errors.Is(err, session.ErrNotEmpty) {
		return err
	}
	return removeOwn(ctx, x.s, x.path)
}
