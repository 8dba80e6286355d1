package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// configTree follows one config tree. A versioned one makes this agent its
// subscriber: it votes on proposals and changes when a rollout permits.
type configTree struct {
	agent   *Agent
	cfg     config.Config
	watcher *config.Watcher
}

// Run implements Unit.
func (c *configTree) Run(ctx context.Context, s *session.Session, up func(view.Update)) error {
	ctx, cancel := context.WithCancel(ctx)
	m := &subscription{
		configTree: c, up: up, stopping: ctx.Done(), session: s,
		subscriber: config.NewSubscriber(config.SubscriberConfig{Path: c.cfg.Path, ID: c.agent.first.ID, Logger: c.agent.log}),
	}
	m.participant = fleet.New(fleet.Config{
		Root: c.cfg.Path, Agent: c.agent.first.ID, Host: m, Tree: m.read, Logger: c.agent.log.With("config", c.cfg.Name),
		Life: c.agent.process.life, Maintenance: c.agent.hostMaint.reason,
	})
	defer m.wg.Wait()
	defer cancel()
	return c.watcher.Run(ctx, s, func(u view.Update) {
		tree, ok := u.(*view.Tree)
		if !ok || tree.Layout != config.LayoutVersioned {
			up(u)
			return
		}
		m.begin(ctx, s)
		m.participant.Offer(tree)
	})
}

// subscription is one agent's part in the rollouts of one tree, for one
// session. It implements fleet.Host.
type subscription struct {
	*configTree
	up          func(view.Update)
	subscriber  *config.Subscriber
	participant *fleet.Participant
	stopping    <-chan struct{} // closed when the unit is told to stop
	session     *session.Session
	wg          sync.WaitGroup
	begun       bool // touched by the watcher's goroutine alone

	mu   sync.Mutex // mu guards last.
	last usage
}

// begin subscribes at the first versioned state: flat trees have no
// subscribers, and an agent that follows one needs no right to write there.
func (m *subscription) begin(ctx context.Context, s *session.Session) {
	if m.begun {
		return
	}
	m.begun = true
	for what, run := range map[string]func(context.Context, *session.Session) error{
		"subscriber": m.subscriber.Run, "rollouts": m.participant.Run, "maintenance": m.tellMaintenance,
	} {
		m.wg.Go(func() {
			if err := run(ctx, s); err != nil && ctx.Err() == nil && s.Context().Err() == nil {
				m.agent.conds.Open("rollouts-not-followed", m.cfg.Name, err.Error())
				m.agent.log.Error("rollouts are not followed", "config", m.cfg.Name, "part", what, "err", err)
			}
		})
	}
}

// read reads a version under the name that the settings gave the tree.
func (m *subscription) read(ctx context.Context, s *session.Session, version int64) (*view.Tree, error) {
	return m.watcher.ReadVersion(ctx, s, version)
}

// Vote implements fleet.Host: the tree must satisfy its own schema, and every
// bundle that uses the tree is rendered with it and this host's own data and
// checked in a staging area.
func (m *subscription) Vote(ctx context.Context, tree *view.Tree) error {
	if err := config.CheckSchema(nil, tree); err != nil {
		return err
	}
	cfg, snap := m.agent.cfg.Load(), m.agent.loop.snapshot.Load()
	v := snap.view.With(tree)
	var reasons []string
	for _, bc := range cfg.Bundles {
		b := apply.Parse(bc, cfg.Sources())
		if b.Err != nil || !slices.Contains(b.Sources, tree.Source()) {
			continue // one that cannot be parsed is not made worse
		}
		if missing := v.Missing(b.Sources...); len(missing) > 0 {
			reasons = append(reasons, fmt.Sprintf("%s: waiting for %s", bc.Name, sourceList(missing)))
			continue
		}
		if err := m.agent.engine.Try(ctx, b, v); err != nil {
			reasons = append(reasons, bc.Name+": "+err.Error())
		}
	}
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "\n"))
	}
	return nil
}

// Show implements fleet.Host.
func (m *subscription) Show(tree *view.Tree) {
	m.up(tree)
	m.report(tree.Generation, config.StateOK, nil)
	m.agent.conds.Close("rollout-failed", m.cfg.Name)
}

// useLimit is how long a host may take to put a version into use, and to go
// back from it, before that counts as a failure.
const useLimit = 10 * time.Minute

// Use implements fleet.Host: the tree goes through the loop as any other
// state; when a bundle fails with it, the former tree does.
func (m *subscription) Use(ctx context.Context, tree *view.Tree) error {
	former, err := m.former(ctx, tree)
	if err != nil {
		return err
	}
	m.up(tree)
	// A bundle that never comes to an end, for it waits for another source,
	// must not hold a permit of the fleet for ever.
	limited, cancel := context.WithTimeoutCause(ctx, useLimit, fmt.Errorf("not in use within %s", useLimit))
	defer cancel()
	snap, err := m.settled(limited, tree)
	if errors.Is(err, fleet.ErrStopping) || ctx.Err() != nil {
		return err
	}
	if err == nil {
		err = m.verdict(snap, tree)
	}
	if err == nil {
		err = m.postCheck(ctx, snap, tree)
	}
	if err == nil {
		m.report(tree.Generation, config.StateOK, nil)
		m.agent.conds.Close("rollout-failed", m.cfg.Name)
		return nil
	}
	m.agent.conds.Open("rollout-failed", m.cfg.Name, fmt.Sprintf("version %d: %v", tree.Generation, err))
	version := int64(0)
	if former != nil {
		version = former.Generation
		m.up(former)
		back, cancelBack := context.WithTimeout(ctx, useLimit)
		defer cancelBack()
		if _, waitErr := m.settled(back, former); errors.Is(waitErr, fleet.ErrStopping) || ctx.Err() != nil {
			return waitErr
		}
	}
	m.report(version, config.StateFailed, err)
	return err
}

// former is what to go back to: the tree in use, or the version before when a
// former life of this agent stopped in the middle of this very change, and
// nil when there is none.
func (m *subscription) former(ctx context.Context, tree *view.Tree) (*view.Tree, error) {
	inUse, ok := m.agent.loop.snapshot.Load().view.Tree(tree.Name)
	if ok && inUse.Generation != tree.Generation {
		return inUse, nil
	}
	if tree.Previous == 0 {
		return nil, nil //nolint:nilnil // a first version has none before it
	}
	former, err := m.read(ctx, m.session, tree.Previous)
	if err == nil {
		return former, nil
	}
	if ctx.Err() != nil || m.session.Context().Err() != nil {
		return nil, fleet.ErrStopping
	}
	return nil, fmt.Errorf("read version %d, to go back to: %w", tree.Previous, err)
}

// settled waits until the loop has the tree in its view and no apply for it is
// due or under way.
func (m *subscription) settled(ctx context.Context, tree *view.Tree) (*snapshot, error) {
	for {
		snap := m.agent.loop.snapshot.Load()
		if have, ok := snap.view.Tree(tree.Name); ok && have.Generation == tree.Generation && !snap.busy[tree.Source()] {
			return snap, nil
		}
		select {
		case <-snap.next:
		case <-m.stopping:
			return nil, fleet.ErrStopping
		case <-m.agent.loop.done:
			return nil, fleet.ErrStopping
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// verdict is the error of the bundles that use the tree. A version without a key
// that a bundle needs is one, though the files stay as they are.
func (m *subscription) verdict(snap *snapshot, tree *view.Tree) error {
	var reasons []string
	for _, name := range snap.order {
		r := snap.bundles[name]
		if !slices.Contains(snap.sources[name], tree.Source()) || r.State != "failed" && !errors.Is(r.Err, template.ErrNoKey) {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", name, r.Err))
	}
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "\n"))
	}
	return nil
}

// postCheck runs the post-checks of the rolling reloads of those bundles.
func (m *subscription) postCheck(ctx context.Context, snap *snapshot, tree *view.Tree) error {
	for _, bc := range m.agent.cfg.Load().Bundles {
		if bc.Reload == nil || bc.Reload.Rolling == nil || !bc.Reload.Rolling.PostCheck.Set() || !slices.Contains(snap.sources[bc.Name], tree.Source()) {
			continue
		}
		args, err := bc.Reload.Rolling.PostCheck.Args(Vars{})
		if err != nil {
			return fmt.Errorf("%s: post_check: %w", bc.Name, err)
		}
		ev := trigger{Event: command.EventPostCheck, Agent: m.agent.first.ID, Name: bc.Name, Version: tree.Version()}
		cmd := ev.Command(bc.Reload.Rolling.PostCheck, args)
		cmd.Timeout = apply.DefaultCheckTimeout
		if _, err := m.agent.plainRun(ctx, cmd); err != nil {
			return fmt.Errorf("%s: post_check: %w", bc.Name, err)
		}
	}
	return nil
}

func (a *Agent) configUnit(c config.Config) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.of.config
	c.Problem = func(err error) { a.conds.Set("source-unusable", "config "+c.Name, err) }
	w := config.NewWatcher(c)
	return unitParts{unit: &configTree{agent: a, cfg: c, watcher: w}, value: w}
}
