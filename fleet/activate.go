package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// start creates our record when the rollout admits one more host: in one
// multi with checks of halt, of the permit, of control and of the number of
// active hosts, so that none of them can have changed.
func (p *Participant) start(ctx context.Context, s *session.Session, name string, strategy Strategy, permit *recipe.Hold) (bool, error) {
	for ctx.Err() == nil && permit.Context().Err() == nil {
		g, err := p.readGate(ctx, s, name)
		if err != nil {
			return false, err
		}
		if g.closed {
			g.stop()
			return false, nil
		}
		if g.halted || g.control.Action != ActionRun || !g.activity.admits(strategy, p.cfg.Agent) {
			err := g.wait(ctx, s, permit)
			g.stop()
			if err != nil {
				return false, err
			}
			continue
		}
		g.stop()
		results, err := s.Multi(ctx, p.startOps(name, g, permit)...)
		if err == nil {
			p.log.Info("rollout turn started", "rollout", name, "zxid", results[len(results)-2].Stat.Mzxid)
			return true, nil
		}
		if err := p.afterStart(ctx, s, name, err); err != nil {
			return false, err
		}
		if _, own, err := p.standing(ctx, s, name); err != nil || own != nil {
			return own != nil && own.State == HostStarted, err
		}
	}
	return false, errors.Join(ctx.Err(), context.Cause(permit.Context()))
}

// startOps is the multi that starts this host. The znode of all hosts is set in
// the last but one.
func (p *Participant) startOps(name string, g *gate, permit *recipe.Hold) []session.Op {
	return []session.Op{
		session.CreateOp(haltPath(p.cfg.Root, name), nil, session.Persistent),
		session.DeleteOp(haltPath(p.cfg.Root, name), -1),
		session.CheckOp(permit.Path(), -1),
		session.CheckOp(controlPath(p.cfg.Root, name), g.controlVersion),
		session.SetOp(hostsPath(p.cfg.Root, name), encode(g.activity.start(p.cfg.Agent)), g.activityVersion),
		session.CreateOp(p.record(name), encode(HostRecord{State: HostStarted, Life: p.cfg.Life, Lives: 1}), session.Persistent),
	}
}

// afterStart decides whether a failed start is a reason to look again.
func (p *Participant) afterStart(ctx context.Context, s *session.Session, name string, err error) error {
	switch {
	case errors.Is(err, session.ErrUnknown):
		return s.Sync(ctx, p.record(name))
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists):
		return nil
	}
	return fmt.Errorf("start: %w", err)
}

// activate uses the tree and records how it went. It goes on when ctx ends in
// between: only the end of the session or of the process stops it, and then
// the record says started. It returns whether the host is done; one that
// failed looks again, for a retry.
func (p *Participant) activate(ctx context.Context, s *session.Session, tree *view.Tree) (bool, error) {
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(s.Context(), cancel)
	defer stop()
	err := p.cfg.Host.Use(live, tree)
	if live.Err() != nil {
		return false, context.Cause(s.Context())
	}
	if errors.Is(err, ErrStopping) {
		return false, err
	}
	record := HostRecord{State: HostDone}
	if err != nil {
		record = HostRecord{State: HostFailed, Error: clip(err.Error())}
	}
	last, done := p.lastWords(live, s)
	defer done()
	return record.State == HostDone, p.finish(last, s, tree.Rollout, record)
}

// lastWords returns a context for what is to be recorded: a newer offer does
// not end it, and a host that stops waits for ZooKeeper no longer than for the
// time of a session.
func (p *Participant) lastWords(ctx context.Context, s *session.Session) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.life, func() {
		pause(ctx, s.Timeout())
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// finish sets our record and leaves the active; the last failure that is
// tolerated creates halt in the same step.
func (p *Participant) finish(ctx context.Context, s *session.Session, name string, record HostRecord) error {
	proposal, err := readProposal(ctx, s, p.cfg.Root, name)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		data, stat, err := s.Get(ctx, hostsPath(p.cfg.Root, name))
		if err != nil {
			return err
		}
		activity, err := decode[Activity](hostsPath(p.cfg.Root, name), data)
		if err != nil {
			return err
		}
		if !contains(activity.Active, p.cfg.Agent) {
			return nil // recorded before, and its reply was lost
		}
		activity = activity.finish(p.cfg.Agent, record.State == HostFailed)
		ops := []session.Op{
			session.SetOp(p.record(name), encode(record), -1),
			session.SetOp(hostsPath(p.cfg.Root, name), encode(activity), stat.Version),
		}
		if activity.Failed >= proposal.Strategy.MaxFailures {
			if _, halted, err := s.Exists(ctx, haltPath(p.cfg.Root, name)); err != nil {
				return err
			} else if !halted {
				ops = append(ops, session.CreateOp(haltPath(p.cfg.Root, name), encode(Halt{Host: p.cfg.Agent, Reason: record.Error}), session.Persistent))
			}
		}
		results, err := s.Multi(ctx, ops...)
		switch {
		case err == nil:
			p.log.Info("rollout turn finished", "rollout", name, "state", record.State, "reason", record.Error, "zxid", results[0].Stat.Mzxid)
			return nil
		case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrUnknown):
			continue
		}
		return fmt.Errorf("finish: %w", err)
	}
	return ctx.Err()
}
