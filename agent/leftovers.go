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

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// leftovers deletes znodes that the agent's session owns and the settings no
// longer name.
//
// A member, a candidate or a subscription would otherwise stay for as long as the session
// lives. There are two occasions:
//
//   - A session was taken over from a previous process. It is compared with the
//     settings before any unit works in it ([leftovers.Session]).
//   - Units of previous settings could not delete what they had, because ZooKeeper
//     was unreachable when they left ([leftovers.add] and [leftovers.run]).
//
// Guaranteed: nothing that the present settings want is deleted, nor a znode whose
// owner among the units is not known. A candidate goes after its commands have ended.
//
// Not guaranteed: a server that cannot list what a session owns, or that refuses,
// keeps no unit from its work; the znodes then go with the session.
type leftovers struct {
	a    *Agent
	wake chan struct{} // size 1: add was called

	slot     chan struct{} // size 1: the sender compares, the others wait
	compared atomic.Bool   // only the first session of a process can be a resumed one

	mu       sync.Mutex // mu guards previous.
	previous []*Config
}

func newLeftovers(a *Agent) *leftovers {
	return &leftovers{a: a, wake: make(chan struct{}, 1), slot: make(chan struct{}, 1)}
}

// Session waits for a session in which units may work.
func (w *leftovers) Session(ctx context.Context) (*session.Session, error) {
	for {
		s, err := w.a.sessions.Session(ctx)
		if err != nil || !s.Resumed() || w.compared.Load() {
			return s, err
		}
		if err := w.compare(ctx, s); err != nil {
			return nil, err
		}
	}
}

// compare sweeps s unless that has been done, or its session has ended.
func (w *leftovers) compare(ctx context.Context, s *session.Session) error {
	select {
	case w.slot <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.slot }()
	if w.compared.Load() || s.Context().Err() != nil {
		return nil
	}
	for last := (*Config)(nil); last != w.a.cfg.Load(); {
		last = w.a.cfg.Load()
		if err := w.sweep(ctx, s, nil); err != nil {
			return err
		}
	}
	w.compared.Store(true)
	return nil
}

// add notes settings whose units have been stopped.
func (w *leftovers) add(old *Config) {
	w.mu.Lock()
	w.previous = append(w.previous, old)
	w.mu.Unlock()
	pace.Notify(w.wake)
}

// run deletes what add has noted until ctx or the session ends. While ZooKeeper is unreachable its requests wait, so
// that what was left goes as soon as it is.
func (w *leftovers) run(ctx context.Context, s *session.Session) error {
	for {
		w.mu.Lock()
		previous := slices.Clone(w.previous)
		w.mu.Unlock()
		if len(previous) > 0 {
			if err := w.sweep(ctx, s, previous); err != nil {
				return nil //nolint:nilerr // a unit that was stopped has no error.
			}
		}
		if s.Context().Err() == nil {
			w.mu.Lock()
			w.previous = w.previous[len(previous):]
			w.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case <-w.wake:
		}
	}
}

// sweep deletes what the session owns and the settings no longer name; with previous
// settings, only what those wanted. It tries until it is done or the session has
// ended, and returns an error only when ctx ends: a server that does not know,
// or refuses, keeps no unit from its work.
func (w *leftovers) sweep(ctx context.Context, s *session.Session, previous []*Config) error {
	log := w.a.log
	for failures := 1; ; failures++ {
		err := w.delete(ctx, s, previous)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || s.Context().Err() != nil:
			return nil //nolint:nilerr // a session that has ended took with it what it owned
		case errors.Is(err, session.ErrUnimplemented):
			log.Debug("cannot list the znodes of the session", "err", err)
			return nil
		case session.ActionFor(err) == session.GiveUp:
			log.Warn("znodes that the settings no longer name stay until the session ends", "err", err)
			return nil
		}
		log.Warn("cannot delete all znodes that the settings no longer name, trying again", "err", err)
		if !pace.Sleep(ctx, pace.Backoff(failures, 200*time.Millisecond, 5*time.Second)) {
			return context.Cause(ctx)
		}
	}
}

func (w *leftovers) delete(ctx context.Context, s *session.Session, previous []*Config) error {
	if err := s.Sync(ctx, "/"); err != nil { // a server that lags must show what was done last
		return fmt.Errorf("sync: %w", err)
	}
	paths, err := s.Ephemerals(ctx, "/")
	if err != nil {
		return fmt.Errorf("list the znodes of the session: %w", err)
	}
	slices.Sort(paths)
	now, err := w.a.cfg.Load().wanted(ctx, s, w.a.log)
	if err != nil {
		return err
	}
	var before []*wanted
	for _, old := range previous {
		was, err := old.wanted(ctx, s, w.a.log)
		if err != nil {
			return err
		}
		was.dirs = nil // a znode without a known owner is left alone
		before = append(before, was)
	}
	paths = slices.DeleteFunc(paths, func(path string) bool {
		return now.has(path) || previous != nil && !slices.ContainsFunc(before, func(was *wanted) bool { return was.has(path) })
	})
	if len(paths) == 0 {
		return nil
	}
	// A candidate of a previous process must not go before its commands have: another
	// host would lead beside them. Nor may a permit go before the halt stands.
	if err := w.a.haltOthers(ctx, s); err != nil {
		return err
	}
	if err := w.a.hooks.WaitGuards(ctx, s.Timeout()); err != nil {
		return err
	}
	return w.deleteAll(ctx, s, paths)
}

func (w *leftovers) deleteAll(ctx context.Context, s *session.Session, paths []string) error {
	for _, path := range paths {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			w.a.log.Info("deleted a znode that the settings no longer name", "path", path)
		case session.ActionFor(err) == session.GiveUp:
			w.a.log.Warn("cannot delete a znode that the settings no longer name", "path", path, "err", err)
		default:
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
	return nil
}

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

// wanted is what the units of settings may own.
type wanted struct {
	paths map[string]bool
	lines map[string]string // path of an election -> mark of its candidates
	dirs  []string          // whose children have no known owner
}

// wanted lists the znodes that units would take over, or use again, in session s.
func (c *Config) wanted(ctx context.Context, s *session.Session, log *slog.Logger) (*wanted, error) {
	w := &wanted{paths: map[string]bool{fleet.AgentPath(c.ID): true}, lines: map[string]string{}}
	for _, v := range c.Services {
		paths, err := v.Own(ctx, s)
		if _, asked := errors.AsType[*session.Error](err); asked && session.ActionFor(err) != session.GiveUp {
			return nil, fmt.Errorf("service %s: %w", v.Name, err)
		}
		if err != nil {
			// Its znode is not known among the others: keep all.
			log.Warn("cannot look for the member of a previous process", "service", v.Name, "err", err)
			w.dirs = append(w.dirs, v.Groups...)
			continue
		}
		for _, path := range paths {
			w.paths[path] = true
		}
	}
	for _, e := range c.Elections {
		line, err := recipe.Candidates(e.Path, e.Dialect, nil)
		if err != nil {
			w.dirs = append(w.dirs, e.Path)
			continue
		}
		w.lines[e.Path] = line.Mark()
	}
	for _, x := range c.Configs {
		w.paths[fleet.SubscriptionPath(x.Path, c.ID)] = true
	}
	for _, b := range c.Bundles {
		if b.Reload != nil && b.Reload.Rolling != nil {
			w.paths[rolling.HostPath(b.Name, c.ID)] = true
		}
	}
	// Permits of rolling reloads and of rollouts are not adopted: a host that
	// still needs one asks again, and a permit that is kept would block the fleet.
	return w, nil
}

// claims names what the units of the settings register.
func (c *Config) claims() []string {
	var list []string
	for _, s := range c.Services {
		for _, group := range s.Groups {
			list = append(list, fmt.Sprintf("service %q %q %q in %s", s.Name, s.Format, s.MemberID, group))
		}
	}
	for _, e := range c.Elections {
		list = append(list, "candidate of "+e.Dialect+" in "+e.Path)
	}
	for _, x := range c.Configs {
		list = append(list, "subscription to "+x.Path)
	}
	return list
}
