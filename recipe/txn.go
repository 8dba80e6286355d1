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
// Guarantees: there is one result, because each decision is set at version 0. The
// result is commit only if the commit votes of all sites exist in one instant. Not
// guaranteed: that a site which voted commit learns the result soon. It must not act
// on its own until it has read the result. Rule for sites: write the prepare record
// before voting. After a restart without that record, call Withdraw first.
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

const resultName = "tx_result"

// Proposal says which sites decide a transaction, and until when.
type Proposal struct {
	Sites []string `json:"sites"` // that vote; each named once
	// Deadline is the time from which any site may abort, by the site's own clock.
	Deadline time.Time `json:"deadline"`
	// ID shows after a lost reply whose proposal was applied. Propose sets it.
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

// decide sets the result, unless there is one, and returns the result that counts. The
// checks must hold in the same instant. It returns Undecided without an error when they
// did not.
func (x *Txn) decide(ctx context.Context, d Decision, checks ...session.Op) (Decision, error) {
	for {
		_, err := x.s.Multi(ctx, append(slices.Clip(checks), session.SetOp(x.result(), []byte(d), 0))...)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, session.ErrUnknown) && ctx.Err() == nil:
			// Read the result. If it is empty, ours was not applied.
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

// Abort decides abort, unless there is a result, and returns the result that counts.
// Coordinators may call it at any time, sites after the deadline.
func (x *Txn) Abort(ctx context.Context) (Decision, error) { return x.decide(ctx, Abort) }

// Remove deletes a decided transaction, with its remaining votes. It returns an error
// that matches ErrHeld when the transaction is not decided yet.
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
	// While a coordinator is still in line, the line stays until the next Remove.
	if err := removeOwn(ctx, x.s, x.path+"-latch"); err != nil && !errors.Is(err, session.ErrNotEmpty) {
		return err
	}
	return removeOwn(ctx, x.s, x.path)
}
