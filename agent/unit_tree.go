package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// configTree follows one config tree. A versioned one makes this agent its
// subscriber: it votes on proposals and changes when a rollout permits. It implements
// fleet.Host.
type configTree struct {
	agent   *Agent
	cfg     config.Config
	watcher *config.Watcher
	reads   reads
	inUse   int64 // the version in use before this unit began; 0: not known

	// This agent's part in the rollouts, over sessions; nil until the first versioned state.
	subscriber  *fleet.Subscriber
	participant *fleet.Participant

	// Of the present session.
	up       func(view.Update)
	stopping <-chan struct{} // closed when the unit must stop

	mu       sync.Mutex // mu guards what follows.
	last     usage
	problems map[string]error // why a part cannot do its work, by part
}

// reads keeps the latest version of a config that this host has read. It is safe for
// concurrent use.
type reads struct{ named, tried atomic.Int64 }

// ready notes the version that ready names. One that is not newer than the one
// before is of a tree that somebody has made anew.
func (r *reads) ready(version int64) {
	if version <= r.named.Swap(version) {
		r.tried.Store(0)
	}
}

// proposed notes a version that was read for a rollout.
func (r *reads) proposed(version int64) {
	r.tried.Store(max(version, r.tried.Load()))
}

// use is how far a host is that has accepted a version.
func (r *reads) use(accepted int64) fleet.ConfigUse {
	return fleet.ConfigUse{Known: max(accepted, r.named.Load(), r.tried.Load()), Accepted: accepted}
}

// use is how far this host is with the versions of the tree.
func (m *configTree) use(snap *snapshot) fleet.ConfigUse {
	tree, _ := snap.view.Tree(m.cfg.Name)
	return m.reads.use(generationOf(tree))
}

func (m *configTree) run(ctx context.Context, s *session.Session, up func(view.Update)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	m.up, m.stopping = up, ctx.Done()
	begin := sync.OnceFunc(func() {
		for what, run := range map[string]func(context.Context, *session.Session) error{
			"subscriber": m.subscriber.Run, "rollouts": m.participant.Run, "maintenance": m.announceMaintenance,
		} {
			wg.Go(func() { again(ctx, s, time.Second, run, func(_ int, err error) { m.problem(what, err) }) })
		}
	})
	if m.participant != nil {
		begin() // a tree that has not changed since the last session is not passed on
	}
	return m.watcher.Run(ctx, s, func(u view.Update) {
		tree, ok := u.(*view.Tree)
		m.reads.ready(generationOf(tree))
		if !ok || tree.Layout != config.LayoutVersioned {
			up(u)
			return
		}
		if m.participant == nil {
			m.subscribe()
		}
		begin()
		m.subscriber.Spread(m.watcher.Hosts())
		m.participant.Offer(tree)
	})
}

// subscribe makes this agent's part in the rollouts. It waits for the first versioned
// state: flat trees have no subscribers, and an agent that follows one needs no right to
// write there.
func (m *configTree) subscribe() {
	m.subscriber = fleet.NewSubscriber(fleet.SubscriberConfig{
		Path: m.cfg.Path, ID: m.agent.first.ID, Logger: m.agent.log,
		Problem: func(err error) { m.problem("subscription", err) },
	})
	m.participant = fleet.New(fleet.Config{
		Root: m.cfg.Path, Agent: m.agent.first.ID, Host: m, Tree: m.read, Logger: m.agent.log.With("config", m.cfg.Name),
		Life: m.agent.process.life, Maintenance: m.agent.hostMaint.Reason, Owned: m.subscriber.Owned,
		NeverCoordinate: m.agent.first.NeverCoordinate, BakeCheck: m.bakeCheck, InUse: m.inUse,
		Halted: func(why string, since time.Time) {
			m.agent.conds.OpenAs(condition.RolloutHalted, condition.Condition{Subject: m.cfg.Name, Text: why, Since: since})
		},
	})
}

// bakeCheck is the bake check of the settings in use; nil: none.
func (m *configTree) bakeCheck() *fleet.BakeCheck {
	c := m.agent.cfg.Load().BakeChecks[m.cfg.Name]
	if c == nil {
		return nil
	}
	bake := &fleet.BakeCheck{Interval: c.Interval, Timeout: c.Timeout, Fall: c.Fall}
	if check, err := registry.NewCheck(*c, m.agent.checkRun); err == nil {
		bake.Run = check.Run
	} else { // the settings refuse what this refuses, but a bake without its check must not pass
		bake.Run = func(context.Context) (string, error) { return "", err }
	}
	return bake
}

// problem notes why a part cannot do its work; nil: it can. The condition is open
// while any part cannot.
func (m *configTree) problem(what string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.problems, what)
	} else {
		if m.problems[what] == nil {
			m.agent.log.Error("cannot follow rollouts", "config", m.cfg.Name, "part", what, "err", err)
		}
		m.problems[what] = err
	}
	errs := lists.Map(slices.Sorted(maps.Keys(m.problems)), func(name string) error { return fmt.Errorf("%s: %w", name, m.problems[name]) })
	m.agent.conds.Set(condition.RolloutsNotFollowed, m.cfg.Name, errors.Join(errs...))
}

// read reads a version under the name that the settings gave the tree.
func (m *configTree) read(ctx context.Context, s *session.Session, v fleet.Version) (*view.Tree, error) {
	if v.Digest == "" {
		return m.watcher.ReadVersion(ctx, s, v.Number)
	}
	return m.watcher.ReadProposed(ctx, s, v.Number, v.Digest, v.Delta)
}

// Vote implements fleet.Host: the tree must satisfy its own schema, and every
// bundle that uses the tree is rendered with it and this host's own data and
// checked in a staging area.
func (m *configTree) Vote(ctx context.Context, tree *view.Tree) error {
	m.reads.proposed(tree.Generation)
	pace.Notify(m.agent.wake.record)
	return m.judge(ctx, tree, m.agent.engine.Try)
}

// judge asks try of every bundle that uses the tree, with the tree and this host's
// own data.
func (m *configTree) judge(ctx context.Context, tree *view.Tree, try func(context.Context, *apply.Bundle, view.View) error) error {
	if err := config.CheckSchema(nil, tree); err != nil {
		return err
	}
	snap := m.agent.loop.snapshot.Load()
	v := snap.view.With(tree)
	var reasons []string
	var unchecked []error
	for _, b := range snap.using(tree.Source()) {
		name := b.Config.Name
		if b.Err != nil {
			continue // one that cannot be parsed is not made worse
		}
		if missing := v.Missing(b.Sources...); len(missing) > 0 {
			reasons = append(reasons, fmt.Sprintf("%s: waiting for %s", name, sourceList(missing)))
			continue
		}
		if err := try(ctx, b.Bundle, v); errors.Is(err, apply.ErrCheckNotRun) {
			unchecked = append(unchecked, fmt.Errorf("%s: %w: %w", name, fleet.ErrCheckNotRun, err))
		} else if err != nil {
			reasons = append(reasons, name+": "+err.Error())
		}
	}
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "\n"))
	}
	return errors.Join(unchecked...)
}

func (m *configTree) Show(tree *view.Tree) {
	m.up(tree)
	m.report(tree.Generation, fleet.StateOK, nil)
	m.agent.conds.Close(condition.RolloutFailed, m.cfg.Name)
}

// useLimit is how long a host may take to put a version into use, and to go
// back from it, before that counts as a failure.
const useLimit = 10 * time.Minute

// Use implements fleet.Host: the tree goes through the loop as any other
// state; when a bundle fails with it, the previous tree does.
func (m *configTree) Use(ctx context.Context, tree, from *view.Tree) error {
	defer m.endTurn(ctx, tree)
	m.reads.proposed(tree.Generation) // another process may have voted
	m.agent.loop.turn(ctx, tree.Source(), turnUse)
	m.up(tree)
	// A bundle that never comes to an end, for it waits for another source,
	// must not hold a permit of the fleet forever.
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
		m.report(tree.Generation, fleet.StateOK, nil)
		m.agent.conds.Close(condition.RolloutFailed, m.cfg.Name)
		return nil
	}
	m.agent.conds.Open(condition.RolloutFailed, m.cfg.Name, fmt.Sprintf("version %d: %v", tree.Generation, err))
	if backErr := m.back(ctx, from); errors.Is(backErr, fleet.ErrStopping) || ctx.Err() != nil {
		return backErr
	}
	m.report(generationOf(from), fleet.StateFailed, err)
	return err
}

func (m *configTree) Back(ctx context.Context, tree *view.Tree) error {
	if tree == nil {
		return nil
	}
	defer m.endTurn(ctx, tree)
	return m.back(ctx, tree)
}

func (m *configTree) endTurn(ctx context.Context, tree *view.Tree) {
	m.agent.loop.turn(ctx, tree.Source(), noTurn)
}

func (m *configTree) back(ctx context.Context, tree *view.Tree) error {
	if tree == nil {
		return nil
	}
	m.agent.loop.turn(ctx, tree.Source(), turnBack)
	m.up(tree)
	m.report(tree.Generation, fleet.StateFailed, errors.New("the version before is in use again"))
	ctx, cancel := context.WithTimeout(ctx, useLimit)
	defer cancel()
	_, err := m.settled(ctx, tree)
	return err
}

// generationOf is the version of a tree, 0 without one.
func generationOf(tree *view.Tree) int64 {
	if tree == nil {
		return 0
	}
	return tree.Generation
}

// settled waits until the loop has the tree in its view and no apply for it is
// due or under way.
func (m *configTree) settled(ctx context.Context, tree *view.Tree) (*snapshot, error) {
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
func (m *configTree) verdict(snap *snapshot, tree *view.Tree) error {
	var reasons []string
	for _, b := range snap.using(tree.Source()) {
		if b.report.State == "failed" || errors.Is(b.report.Err, template.ErrNoKey) {
			reasons = append(reasons, fmt.Sprintf("%s: %v", b.Config.Name, b.report.Err))
		}
	}
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "\n"))
	}
	return nil
}

// postCheck runs the post-checks of the rolling reloads of those bundles.
func (m *configTree) postCheck(ctx context.Context, snap *snapshot, tree *view.Tree) error {
	for _, b := range snap.using(tree.Source()) {
		if err := m.agent.engine.PostCheck(ctx, b.Bundle, snap.view); err != nil {
			return fmt.Errorf("%s: %w", b.Config.Name, err)
		}
	}
	return nil
}

func (a *Agent) configUnit(c config.Config) unitParts {
	c.Logger, c.Metrics = a.log, a.metrics.of.config
	c.Problem = func(err error) {
		var gone error
		if errors.Is(err, config.ErrGone) {
			gone, err = err, nil
		}
		a.conds.Set(condition.SourceGone, "config "+c.Name, gone)
		a.conds.Set(condition.SourceUnusable, "config "+c.Name, err)
	}
	tree, ok := a.loop.snapshot.Load().view.Tree(c.Name)
	if !ok && a.loop.lastGood != nil {
		tree, ok = a.loop.lastGood.Tree(c.Name)
	}
	c.Had = ok && tree.Path == c.Path
	u := &configTree{agent: a, cfg: c, watcher: config.NewWatcher(c), problems: map[string]error{}}
	if c.Had && tree.Layout == config.LayoutVersioned {
		u.inUse = tree.Generation
	}
	return unitParts{run: u.run, value: u}
}

// usage is what this agent uses of a config tree.
type usage struct {
	version int64
	state   string
	err     error
}

// report publishes what is in use. Of a host in maintenance that comes
// first: publishers do not wait for it.
func (m *configTree) report(version int64, state string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = usage{version, state, err}
	m.announce()
}

// announce passes on what is in use. m.mu is held, so that an older state never follows
// a newer one.
func (m *configTree) announce() {
	state, err := m.last.state, m.last.err
	if reason, _ := m.agent.hostMaint.Reason(); reason != "" {
		state, err = fleet.StateMaintenance, errors.New(reason)
	}
	m.subscriber.Report(m.last.version, state, err)
}

// announceMaintenance keeps the subscription in step with the maintenance of the
// host until ctx or the session ends.
func (m *configTree) announceMaintenance(ctx context.Context, s *session.Session) error {
	for {
		_, changed := m.agent.hostMaint.Reason()
		m.mu.Lock()
		m.last.state = cmp.Or(m.last.state, fleet.StateOK)
		m.announce()
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}

// followGroup makes the unit of a group, or of a set of groups.
func (a *Agent) followGroup(run unitRun, value any) unitParts {
	return unitParts{value: value, run: func(ctx context.Context, s *session.Session, up func(view.Update)) error {
		return run(ctx, s, func(u view.Update) {
			announceGroups(a.conds, u)
			up(u)
		})
	}}
}

// announceGroups opens and closes the conditions that belong to a new state.
func announceGroups(conds *condition.Set, u view.Update) {
	switch v := u.(type) {
	case *view.Group:
		announceHeld(conds, v.Name, v.Name, v)
	case *view.Groups:
		conds.Set(condition.NameRefused, "groups "+v.Name, refusedNames(v))
		for _, one := range v.Groups {
			announceHeld(conds, v.Name+"/"+one.Name, v.Name+" "+one.Name, one)
		}
		conds.Retain(condition.MembersHeld, func(subject string) bool {
			group, ofSet := strings.CutPrefix(subject, v.Name+"/")
			_, there := v.Group(group)
			return there || !ofSet
		})
	}
}

// announceHeld says that a guard holds members of a group; command is how accept names it.
func announceHeld(conds *condition.Set, subject, command string, v *view.Group) {
	text := ""
	if !v.Holding.IsZero() {
		held := 0
		for i := range v.Members {
			if v.Members[i].Held {
				held++
			}
		}
		text = fmt.Sprintf("%d of %d members have vanished from ZooKeeper at once and are kept; `zkagent members accept %s` believes it", held, len(v.Members), command)
	}
	conds.Open(condition.MembersHeld, subject, text)
}

// refusedNames is the error of a set whose parent has children that are no names.
func refusedNames(v *view.Groups) error {
	const most = 5
	if len(v.RawNames) == 0 {
		return nil
	}
	list := lists.Map(v.RawNames[:min(len(v.RawNames), most)], func(name string) string { return fmt.Sprintf("%+q", session.JoinPath(v.Path, name)) })
	if n := len(v.RawNames) - most; n > 0 {
		list = append(list, fmt.Sprintf("and %d more", n))
	}
	return fmt.Errorf("not a group, because its name is not allowed: %s", strings.Join(list, ", "))
}

// followed is the configuration of what follows a group, or a set of groups.
func (a *Agent) followed(kind string, c registry.GroupConfig, before []*view.Group) registry.GroupConfig {
	c.Logger, c.Metrics, c.Before = a.log, a.metrics.of.registry, before
	c.Problem = func(group string, err error) {
		subject := kind + " " + c.Name
		if kind == string(kindGroups) && group != "" {
			subject += "/" + group
		}
		a.conds.Set(condition.SourceUnusable, subject, err)
	}
	return c
}

// groupsBefore returns the groups as they were in use last, those of this process first. Of the
// process before it they count where a guard was holding, or when it has only just ended: later
// others may have left.
func (a *Agent) groupsBefore() []*view.Group {
	list, last := groupsOf(a.loop.snapshot.Load().view), a.loop.lastGood
	if last == nil {
		return list
	}
	old := time.Since(last.Saved) > registry.DefaultWindow
	return append(list, slices.DeleteFunc(groupsOf(last.View), func(g *view.Group) bool { return old && g.Holding.IsZero() })...)
}

// groupsOf returns the groups of a view, with those of its sets.
func groupsOf(v view.View) []*view.Group {
	var list []*view.Group
	for _, s := range v.Sources() {
		switch u := v.Get(s).(type) {
		case *view.Group:
			list = append(list, u)
		case *view.Groups:
			list = append(list, u.Groups...)
		}
	}
	return list
}

// observes reports whether anything wants to know who leads while another
// does: that costs a wake-up of every candidate at each change.
func observes(hooks []hook.Config, bundles []*bundle, election string) bool {
	source := view.Source{Kind: view.KindElection, Name: election}
	return slices.ContainsFunc(hooks, func(h hook.Config) bool { return slices.Contains(h.OnChange, source) }) ||
		slices.ContainsFunc(bundles, func(b *bundle) bool { return slices.Contains(b.Sources, source) })
}

func (a *Agent) electionUnit(e election.Config) unitParts {
	e.Keep, e.Logger, e.Metrics = true, a.log, a.metrics.of.election
	e.Lead = func(ctx context.Context, t election.Term) { a.hooks.Lead(ctx, e.Name, e.Path, t) }
	c := election.New(e)
	return unitParts{
		run: func(ctx context.Context, s *session.Session, up func(view.Update)) error {
			return c.Run(ctx, s, func(l *view.Leader) {
				refused := ""
				if l.RawID != "" {
					refused = fmt.Sprintf("the leader's znode %+q has the id %+q, which is not allowed", l.Znode, l.RawID)
				}
				a.conds.Open(condition.NameRefused, "election "+e.Name, refused)
				up(l)
			})
		}, value: c,
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMargin)
			defer cancel()
			if err := c.Resign(ctx); err != nil {
				a.log.Debug("cannot resign", "election", e.Name, "err", err)
			}
		},
	}
}
