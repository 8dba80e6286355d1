package hook

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/session"
)

const deposedLimit = 10 * time.Minute

type term struct {
	ctx      context.Context // ends with the term
	cancel   context.CancelFunc
	path     string // of the election
	election election.Term
}

// leading returns the term in which this agent leads the election now: nil when
// it does not, or when its lease cannot be trusted.
func (e *Engine) leading(name string) *term {
	v, _ := e.terms.Load(name)
	x, ok := v.(*term)
	if !ok || x.ctx.Err() != nil || !x.election.Session.Held() {
		return nil
	}
	return x
}

// Lead is called by a candidate for the length of each term. It runs the
// leader-only hooks of the election, and returns soon after the term has ended,
// with nothing of it left but on_deposed.
func (e *Engine) Lead(parent context.Context, name, path string, t election.Term) {
	// To return before the term has ended would be to resign.
	defer func() { <-parent.Done() }()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if err := e.WaitGuards(ctx, t.Session.Timeout()); err != nil {
		return
	}
	e.Events.Add(event.Event{Kind: "elected", Subject: name, Text: fmt.Sprintf("term %d", t.ID)})
	e.Log.Info("elected", "election", name, "term", t.ID)
	x := &term{ctx: ctx, cancel: cancel, path: path, election: t}
	e.terms.Store(name, x)
	e.Elected(ctx)
	p := &place{engine: e, election: name, scope: scope{
		term:      t.ID,
		newLedger: func(hook string) ledger { return x.ledger(hook) },
		run:       func(ctx context.Context, c proc.Command) (proc.Result, error) { return e.runInTerm(ctx, x, c) },
	}}
	p.run(ctx)
	e.terms.Delete(name)
	e.Log.Info("deposed", "election", name, "term", t.ID, "err", context.Cause(ctx))
	e.Events.Add(event.Event{Kind: "deposed", Subject: name, Text: fmt.Sprintf("term %d", t.ID)})
	e.deposed(ctx, name, t.ID)
}

// ledger opens the ledger of a hook beside the election's path.
func (x *term) ledger(hook string) *zkLedger {
	return &zkLedger{s: x.election.Session, guard: x.election.Guard(), path: session.JoinPath(x.path+"-ledger", files.Name(hook))}
}

// Term is the term in which this agent leads the election; 0: it does not.
func (e *Engine) Term(election string) int64 {
	if x := e.leading(election); x != nil {
		return x.election.ID
	}
	return 0
}

// RunLeading runs a command in a term of the election, and without a lease when
// the election has no name.
func (e *Engine) RunLeading(ctx context.Context, election string, term int64, c proc.Command) (proc.Result, error) {
	if election == "" {
		return e.plain(ctx, c)
	}
	x := e.leading(election)
	if x == nil || x.election.ID != term {
		return proc.Result{Code: -1}, command.ErrNotLeading
	}
	return e.runInTerm(ctx, x, c)
}

// runInTerm runs a command that only the leader of the term may run: under a
// guard that ends it with the lease.
func (e *Engine) runInTerm(ctx context.Context, x *term, c proc.Command) (proc.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(x.ctx, func() { cancel(context.Cause(x.ctx)) })()
	s := x.election.Session
	leased, stop := s.WithLease(ctx)
	defer stop()
	// TERM comes when the lease runs out, KILL a sixth of the timeout later:
	// within the third that the server still keeps the session.
	c.Grace = min(s.Timeout()/6, proc.DefaultGrace)
	run := e.Options.Run
	if run == nil {
		run = proc.Guard{Lease: s.Lease, Every: min(max(s.Timeout()/30, 10*time.Millisecond), 200*time.Millisecond), LockFile: e.guardLock()}.Run
	}
	res, err := run(leased, c)
	if err != nil && leased.Err() != nil {
		err = fmt.Errorf("%w: %w", proc.ErrLease, err) // also when the term does not know it yet
	}
	return res, err
}

// deposed runs the on_deposed hooks of an election, after its term. They are
// not work of a leader, so they need no lease; Wait waits for them.
func (e *Engine) deposed(ctx context.Context, name string, id int64) {
	if e.handingOver.Load() {
		return // the term continues in the next process.
	}
	p := &place{engine: e, election: name, scope: scope{term: id, run: e.plain}}
	for _, h := range e.set.Load().hooks {
		if h.Leader != name || !h.OnDeposed {
			continue
		}
		e.deposing.Go(func() {
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), deposedLimit)
			defer cancel()
			_ = p.runner(h).attempts(after, command.Trigger{Event: command.EventDeposed}, time.Time{})
		})
	}
}

// Wait waits for the on_deposed hooks that run.
func (e *Engine) Wait() { e.deposing.Wait() }

// HandOver ends the terms of this process without resigning, and waits for their
// guarded commands: what they do may not go on when the next process acts.
func (e *Engine) HandOver(ctx context.Context) {
	e.terms.Range(func(_, x any) bool {
		x.(*term).cancel() //nolint:forcetypeassert // Lead stores nothing else.
		return true
	})
	if err := e.awaitGuards(ctx, nil); err != nil {
		e.Log.Warn("leader-only commands may still run", "err", err)
	}
}

// HandingOver says that the terms go on in the next process: no on_deposed hook
// runs from now on.
func (e *Engine) HandingOver() { e.handingOver.Store(true) }

// WaitGuards waits until no guard of a previous process is left: what such a
// process started in a term that this one resumed may still run. timeout is that
// of the session.
func (e *Engine) WaitGuards(ctx context.Context, timeout time.Duration) error {
	if e.guardsGone.Load() {
		return nil
	}
	err := e.awaitGuards(ctx, func() {
		e.Conditions.Open(condition.GuardsRunning, "", "waiting for commands that a previous process of this agent started as leader")
	})
	e.Conditions.Close(condition.GuardsRunning, "")
	if err != nil && ctx.Err() == nil {
		// Without the lock this cannot be known. Such commands end with their lease,
		// which ends before the session does.
		e.Log.Warn("cannot use the guard lock", "err", err)
		err = nil
		if !pace.Sleep(ctx, timeout) {
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		e.guardsGone.Store(true)
	}
	return err
}

// awaitGuards waits until no guard of this agent runs.
func (e *Engine) awaitGuards(ctx context.Context, waiting func()) error {
	path := e.guardLock()
	if path == "" {
		return nil
	}
	lock, err := proc.Lock(ctx, path, waiting)
	if err != nil {
		return err
	}
	return lock.Close()
}

func (e *Engine) guardLock() string {
	if e.StateDir == "" {
		return ""
	}
	return filepath.Join(e.StateDir, "guards.lock")
}

// BeginReload opens the ledger of a leader-only reload: a change that was put in
// place without a leader is reloaded by the next leader, and one that a previous
// leader has reloaded is not reloaded again. done: there is nothing to do.
// Else finish records the end of the reload.
func (e *Engine) BeginReload(ctx context.Context, req command.LeaderReload) (done bool, finish func(error), err error) { //nolint:nonamedreturns // three results need names.
	x := e.leading(req.Election)
	if x == nil || x.election.ID != req.Term {
		return false, nil, command.ErrNotLeading
	}
	l := x.ledger("reload." + req.Bundle)
	rec, err := l.load(ctx)
	if err != nil {
		return false, nil, err
	}
	if e.reloaded(rec, req) {
		return true, nil, nil
	}
	put := func(ctx context.Context, state, run string) error {
		next := rec.clone()
		for s, z := range req.Zxids {
			next.Changes[s] = entry{Zxid: z, Digest: req.Digest, State: state, Term: x.election.ID, Time: time.Now().UTC(), Run: run}
		}
		return l.store(ctx, next)
	}
	run := uuid.NewString()
	if err := put(ctx, stateStarted, run); err != nil {
		return false, nil, err
	}
	finish = func(err error) {
		state := endOf(ctx, err)
		if state == "" {
			return // the ledger still says that it was started.
		}
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerGrace)
		defer cancel()
		if err := put(final, state, run); err != nil {
			e.Log.Warn("cannot record the end of a reload", "template", req.Bundle, "err", err)
		}
	}
	return false, finish, nil
}

// reloaded reports whether a leader has reloaded these files, or newer ones. After
// a repair a program may have read something else meanwhile. A
// reload without a known end is not counted: to reload once more does no harm.
func (e *Engine) reloaded(rec record, req command.LeaderReload) bool {
	for s, z := range req.Zxids {
		known, was := rec.Changes[s]
		if !was {
			return false
		}
		switch known.compare(z, req.Digest, e.seen.of(s), true) {
		case behind: // the next view brings what the ledger is about.
		case changed:
			return false
		case current:
			if known.State != stateDone || req.Repair {
				return false
			}
		}
	}
	return true
}
