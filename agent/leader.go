package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/session"
)

// term is a term that this agent is in.
type term struct {
	ctx      context.Context // ends with the term
	cancel   context.CancelFunc
	election election.Term
}

// terms are the terms that this agent is in, by election. It is safe for
// concurrent use.
type terms struct {
	mu sync.Mutex // mu guards in.
	in map[string]*term
}

func (t *terms) set(name string, x *term) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x == nil {
		delete(t.in, name)
		return
	}
	t.in[name] = x
}

// get returns the term in which this agent leads the election now: nil when
// it does not, or when its lease cannot be trusted.
func (t *terms) get(name string) *term {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.in[name]
	if x == nil || x.ctx.Err() != nil || !x.election.Session.Held() {
		return nil
	}
	return x
}

// end ends all terms of this process, without resigning.
func (t *terms) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.in {
		x.cancel()
	}
}

// lead is called by a candidate for the length of each term: it runs the
// election's leader-only hooks, and returns soon after the term has ended,
// with nothing of it left but on_deposed.
func (a *Agent) lead(parent context.Context, e ElectionConfig, t election.Term) {
	// To return before the term has ended would be to resign.
	defer func() { <-parent.Done() }()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if err := a.waitGuards(ctx); err != nil {
		return
	}
	a.events.Add(event.Event{Kind: "elected", Subject: e.Name, Text: fmt.Sprintf("term %d", t.ID)})
	a.log.Info("elected", "election", e.Name, "term", t.ID)
	x := &term{ctx: ctx, cancel: cancel, election: t}
	a.terms.set(e.Name, x)
	a.leaderChanged(ctx)
	host := a.hookHost(e.Name, hookScope{
		term:      t.ID,
		newLedger: func(hook string) ledger { return a.zkLedger(e, t, hook) },
		run:       func(ctx context.Context, c proc.Command) (proc.Result, error) { return a.runInTerm(ctx, x, c) },
	})
	host.run(ctx)
	a.terms.set(e.Name, nil)
	a.log.Info("deposed", "election", e.Name, "term", t.ID, "err", context.Cause(ctx))
	a.events.Add(event.Event{Kind: "deposed", Subject: e.Name, Text: fmt.Sprintf("term %d", t.ID)})
	a.deposed(ctx, e.Name, t.ID)
}

// zkLedger opens the ledger of a hook beside the election's path.
func (a *Agent) zkLedger(e ElectionConfig, t election.Term, hook string) ledger {
	return &zkLedger{s: t.Session, guard: t.Guard(), path: session.JoinPath(e.Path+"-ledger", fileName(hook))}
}

// waitGuards waits until no guard of a former process is left: what such a
// process started in a term that we resumed may still run.
func (a *Agent) waitGuards(ctx context.Context) error {
	lock := a.guardLock()
	if lock == "" || a.guardsGone.Load() {
		return nil
	}
	err := proc.WaitGuards(ctx, lock, func() {
		a.conds.Open("guards-running", "", "waiting for commands that a former process of this agent started as leader")
	})
	a.conds.Close("guards-running", "")
	if err != nil && ctx.Err() == nil {
		// Without the lock nobody can tell; such commands end with their
		// lease, so waiting for the session timeout is enough.
		a.log.Warn("guard lock not usable", "err", err)
		err = nil
	}
	if err == nil {
		a.guardsGone.Store(true)
	}
	return err
}

func (a *Agent) guardLock() string {
	if a.stateDir == "" {
		return ""
	}
	return filepath.Join(a.stateDir, "guards.lock")
}

// runInTerm runs a command that only the leader of the term may run: under a
// guard that ends it with the lease.
func (a *Agent) runInTerm(ctx context.Context, x *term, c proc.Command) (proc.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(x.ctx, func() { cancel(context.Cause(x.ctx)) })()
	s := x.election.Session
	leased, stop := s.WithLease(ctx)
	defer stop()
	if a.run != nil {
		return a.run(leased, c)
	}
	// TERM comes when the lease runs out, KILL a sixth of the timeout later:
	// within the third that the server still keeps the session.
	c.Grace = min(s.Timeout()/6, proc.DefaultGrace)
	guard := proc.Guard{Lease: s.Lease, Every: min(max(s.Timeout()/30, 10*time.Millisecond), 200*time.Millisecond), LockFile: a.guardLock()}
	return guard.Run(leased, c)
}

// deposed runs the on_deposed hooks of an election, after its term. They are
// not work of a leader, so they need no lease; Run waits for them.
func (a *Agent) deposed(ctx context.Context, name string, id int64) {
	if a.handingOver.Load() {
		return // the term goes on in the next process.
	}
	for _, h := range a.hooks.Load().hooks {
		if h.Leader != name || !h.OnDeposed {
			continue
		}
		host := a.hookHost(name, hookScope{term: id, run: a.plainRun})
		a.hookRuns.Go(func() {
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), deposedLimit)
			defer cancel()
			_ = host.runner(h).attempts(after, trigger{Event: command.EventDeposed}, time.Time{})
		})
	}
}

// deposedLimit bounds on_deposed hooks with their retries.
const deposedLimit = 10 * time.Minute

// plainRun runs a command that needs no lease.
func (a *Agent) plainRun(ctx context.Context, c proc.Command) (proc.Result, error) {
	if a.run != nil {
		return a.run(ctx, c)
	}
	return proc.Run(ctx, c)
}

// runReload runs a reload command, in the term of the election if it names one.
func (a *Agent) runReload(ctx context.Context, leader string, c proc.Command) (proc.Result, error) {
	if leader == "" {
		return a.plainRun(ctx, c)
	}
	x := a.terms.get(leader)
	if x == nil {
		return proc.Result{Code: -1}, errNotLeading
	}
	return a.runInTerm(ctx, x, c)
}

// termOf is the term in which this agent leads; 0: it does not.
func (a *Agent) termOf(name string) int64 {
	if x := a.terms.get(name); x != nil {
		return x.election.ID
	}
	return 0
}

// leaderChanged makes leader-only reloads that are owed run.
func (a *Agent) leaderChanged(ctx context.Context) {
	a.loop.do(ctx, func() {
		for _, b := range a.loop.bundles {
			if r := b.cfg.Reload; r != nil && r.Leader != "" && a.owed.has(b.cfg.Name) {
				b.settle.note(time.Now())
			}
		}
	})
}

// RunHook runs a hook now, because somebody asked for it. A leader-only hook
// runs only where its leader is.
func (a *Agent) RunHook(ctx context.Context, name string) error {
	for _, h := range a.hooks.Load().hooks {
		if h.Name != name {
			continue
		}
		scope := hookScope{run: a.plainRun}
		if h.Leader != "" {
			x := a.terms.get(h.Leader)
			if x == nil {
				return fmt.Errorf("hook %s: this agent does not lead election %s", name, h.Leader)
			}
			scope.term = x.election.ID
			scope.run = func(ctx context.Context, c proc.Command) (proc.Result, error) { return a.runInTerm(ctx, x, c) }
		}
		return a.hookHost(h.Leader, scope).runner(h).once(ctx, trigger{Event: command.EventManual}, time.Time{}, 1)
	}
	return fmt.Errorf("hook %q: %w", name, errUnknownName)
}

// errUnknownName says that the settings have no such block.
var errUnknownName = errors.New("no such name in the settings")
