package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// orphans deletes what the session owns and no unit of the settings wants any
// more: a member, a candidate or a subscription would stay for as long as the
// session lives. There are two occasions:
//
//   - A session was taken over from a former process. It is compared with the
//     settings before any unit works in it (Session).
//   - Units of former settings could not delete what they had, because ZooKeeper
//     was not to be reached when they left (add, and Run, a unit of its own).
//
// It is safe for concurrent use.
type orphans struct {
	agent *Agent
	wake  chan struct{} // size 1: add was called

	turn     chan struct{} // size 1: the sender compares, the others wait
	compared atomic.Bool   // only the first session of a process can be a resumed one

	mu     sync.Mutex // mu guards former.
	former []*Config
}

func newOrphans(a *Agent) *orphans {
	return &orphans{agent: a, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// Session waits for a session in which units may work.
func (o *orphans) Session(ctx context.Context) (*session.Session, error) {
	for {
		s, err := o.agent.sessions.Session(ctx)
		if err != nil || !s.Resumed() || o.compared.Load() {
			return s, err
		}
		if err := o.compare(ctx, s); err != nil {
			return nil, err
		}
	}
}

// compare sweeps s unless that has been done, or its session has ended.
func (o *orphans) compare(ctx context.Context, s *session.Session) error {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-o.turn }()
	if o.compared.Load() || s.Context().Err() != nil {
		return nil
	}
	for cfg := (*Config)(nil); cfg != o.agent.cfg.Load(); {
		cfg = o.agent.cfg.Load()
		if err := o.sweep(ctx, s, nil); err != nil {
			return err
		}
	}
	o.compared.Store(true)
	return nil
}

// add notes settings whose units have been stopped, unless everything that they
// registered is wanted by the present ones, too.
func (o *orphans) add(old, now *Config) {
	if !registersMore(old, now) {
		return
	}
	o.mu.Lock()
	o.former = append(o.former, old)
	o.mu.Unlock()
	pace.Poke(o.wake)
}

// registersMore reports whether old has a service, an election or a config tree
// that now has not.
func registersMore(old, now *Config) bool {
	for _, was := range old.Services {
		if !slices.ContainsFunc(now.Services, func(n registry.ServiceConfig) bool {
			return n.Name == was.Name && n.Group == was.Group && n.Format == was.Format && n.MemberID == was.MemberID
		}) {
			return true
		}
	}
	for _, was := range old.Elections {
		if !slices.ContainsFunc(now.Elections, func(n ElectionConfig) bool { return n.Path == was.Path && n.Dialect == was.Dialect }) {
			return true
		}
	}
	for _, was := range old.Configs {
		if !slices.ContainsFunc(now.Configs, func(n config.Config) bool { return n.Path == was.Path }) {
			return true
		}
	}
	return false
}

// Run implements Unit. While ZooKeeper is not to be reached its requests wait, so
// that what was left goes as soon as it is.
func (o *orphans) Run(ctx context.Context, s *session.Session, _ func(view.Update)) error {
	for {
		o.mu.Lock()
		former := slices.Clone(o.former)
		o.mu.Unlock()
		if len(former) > 0 {
			if err := o.sweep(ctx, s, former); err != nil {
				return nil //nolint:nilerr // a unit that was stopped has no error.
			}
		}
		if s.Context().Err() == nil {
			o.mu.Lock()
			o.former = o.former[len(former):]
			o.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case <-o.wake:
		}
	}
}

// sweep deletes what the session owns and the settings do not want; with former
// settings, only what those wanted. It tries until it is done or the session has
// ended, and returns an error only when ctx ends: a server that does not know,
// or refuses, keeps no unit from its work.
func (o *orphans) sweep(ctx context.Context, s *session.Session, former []*Config) error {
	log := o.agent.log
	for failures := 1; ; failures++ {
		err := o.delete(ctx, s, former)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || s.Context().Err() != nil:
			return nil //nolint:nilerr // a session that has ended took with it what it owned
		case errors.Is(err, session.ErrUnimplemented):
			log.Debug("server does not tell what the session owns", "err", err)
			return nil
		case session.IsPermanent(err):
			log.Warn("what the settings do not want any more stays until the session ends", "err", err)
			return nil
		}
		log.Warn("what the settings do not want any more is not yet deleted", "err", err)
		if !pace.Sleep(ctx, pace.Backoff(failures, 200*time.Millisecond, 5*time.Second)) {
			return context.Cause(ctx)
		}
	}
}

// delete does it once.
func (o *orphans) delete(ctx context.Context, s *session.Session, former []*Config) error {
	paths, err := owned(ctx, s)
	if err != nil {
		return err
	}
	now, err := wantedOf(ctx, s, o.agent.cfg.Load(), o.agent.log)
	if err != nil {
		return err
	}
	paths = slices.DeleteFunc(paths, now.has)
	if former != nil {
		if paths, err = o.wantedBefore(ctx, s, former, paths); err != nil {
			return err
		}
	}
	if len(paths) == 0 {
		return nil
	}
	// A candidate of a former process must not go before its commands have:
	// another host would lead beside them.
	if err := o.agent.hooks.WaitGuards(ctx, s.Timeout()); err != nil {
		return err
	}
	return o.deleteAll(ctx, s, paths)
}

// wantedBefore returns those paths that former settings wanted.
func (o *orphans) wantedBefore(ctx context.Context, s *session.Session, former []*Config, paths []string) ([]string, error) {
	var before []*wanted
	for _, old := range former {
		w, err := wantedOf(ctx, s, old, o.agent.log)
		if err != nil {
			return nil, err
		}
		w.dirs = nil // a znode without a known owner is left alone
		before = append(before, w)
	}
	return slices.DeleteFunc(paths, func(path string) bool {
		return !slices.ContainsFunc(before, func(w *wanted) bool { return w.has(path) })
	}), nil
}

// owned lists what the session owns. The sync makes a server that lags show what
// was done last.
func owned(ctx context.Context, s *session.Session) ([]string, error) {
	if err := s.Sync(ctx, "/"); err != nil {
		return nil, fmt.Errorf("sync: %w", err)
	}
	paths, err := s.Ephemerals(ctx, "/")
	if err != nil {
		return nil, fmt.Errorf("list what the session owns: %w", err)
	}
	slices.Sort(paths)
	return paths, nil
}

func (o *orphans) deleteAll(ctx context.Context, s *session.Session, paths []string) error {
	for _, path := range paths {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			o.agent.log.Info("deleted what the settings do not want any more", "path", path)
		case session.IsPermanent(err):
			o.agent.log.Warn("not deleted, though the settings do not want it any more", "path", path, "err", err)
		default:
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
	return nil
}

// wanted is what the units of the settings may own.
type wanted struct {
	paths map[string]bool
	lines map[string]string // path of an election -> mark of its candidates
	dirs  []string          // whose children have no known owner
}

// wantedOf lists what units would take over, or use again, in session s.
func wantedOf(ctx context.Context, s *session.Session, cfg *Config, log *slog.Logger) (*wanted, error) {
	w := &wanted{paths: map[string]bool{fleet.AgentPath(cfg.ID): true}, lines: map[string]string{}}
	for _, c := range cfg.Services {
		path, err := c.Own(ctx, s)
		if _, asked := errors.AsType[*session.Error](err); asked && !session.IsPermanent(err) {
			return nil, fmt.Errorf("service %s: %w", c.Name, err)
		}
		if err != nil {
			// Its znode is not known among the others: keep all.
			log.Warn("member of a former process not looked for", "service", c.Name, "err", err)
			w.dirs = append(w.dirs, c.Group)
			continue
		}
		w.paths[path] = true
	}
	for _, e := range cfg.Elections {
		line, err := recipe.Candidates(e.Path, e.Dialect, nil)
		if err != nil {
			w.dirs = append(w.dirs, e.Path)
			continue
		}
		w.lines[e.Path] = line.Mark()
	}
	for _, c := range cfg.Configs {
		w.paths[config.SubscriptionPath(c.Path, cfg.ID)] = true
	}
	for _, b := range cfg.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			w.paths[rolling.HostPath(b.Name, cfg.ID)] = true
		}
	}
	// Permits of rolling reloads and of rollouts are not adopted: a host that
	// still needs one asks again, and a permit that is kept would block the fleet.
	return w, nil
}

// has reports whether a unit may own the znode.
func (w *wanted) has(path string) bool {
	dir, name := session.SplitPath(path)
	if w.paths[path] || slices.Contains(w.dirs, dir) {
		return true
	}
	if mark, ok := w.lines[dir]; ok {
		_, candidate := recipe.ParseSequence(name, mark)
		return candidate
	}
	return false
}
