package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// reconciled gives out sessions. One that was taken over from a former process
// is first compared with the settings, before any unit works in it: what it owns
// and no unit wants any more is deleted, for nobody else ever would. It is safe
// for concurrent use.
type reconciled struct {
	sessions interface {
		Session(ctx context.Context) (*session.Session, error)
	}
	reconcile func(ctx context.Context, s *session.Session) error

	turn chan struct{} // size 1: whoever fills it reconciles, the others wait
	done atomic.Bool   // only the first session of a process can be a resumed one
}

func newReconciled(a *Agent) *reconciled {
	return &reconciled{sessions: a.sessions, reconcile: a.reconcile, turn: make(chan struct{}, 1)}
}

// Session waits for a session in which units may work.
func (r *reconciled) Session(ctx context.Context) (*session.Session, error) {
	for {
		s, err := r.sessions.Session(ctx)
		if err != nil || !s.Resumed() || r.done.Load() {
			return s, err
		}
		if err := r.once(ctx, s); err != nil {
			return nil, err
		}
	}
}

// once reconciles s unless that has been done, or its session has ended.
func (r *reconciled) once(ctx context.Context, s *session.Session) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.done.Load() || s.Context().Err() != nil {
		return nil
	}
	if err := r.reconcile(ctx, s); err != nil {
		return err
	}
	r.done.Store(true)
	return nil
}

// reconcile deletes what no unit of the settings wants of what the session
// owns. It tries until it is done, and returns an error only when ctx ends: a
// server that cannot tell, or does not let us, keeps no unit from its work.
func (a *Agent) reconcile(ctx context.Context, s *session.Session) error {
	for failures := 1; ; failures++ {
		cfg := a.cfg.Load()
		err := a.deleteOrphans(ctx, s, cfg)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.Context().Err() != nil:
			return nil //nolint:nilerr // the session is gone, and with it what it owned
		case err == nil && a.cfg.Load() == cfg:
			return nil
		case errors.Is(err, session.ErrUnimplemented):
			a.log.Debug("server does not tell what the session owns", "err", err)
			return nil
		case session.IsPermanent(err):
			a.log.Warn("resumed session not compared with the settings", "err", err)
			return nil
		case err != nil:
			a.log.Warn("resumed session not yet compared with the settings", "err", err)
			if !pace.Sleep(ctx, pace.Backoff(failures, 200*time.Millisecond, 5*time.Second)) {
				return context.Cause(ctx)
			}
		}
	}
}

// deleteOrphans does it once.
func (a *Agent) deleteOrphans(ctx context.Context, s *session.Session, cfg *Config) error {
	paths, err := owned(ctx, s)
	if err != nil {
		return err
	}
	w, err := wantedOf(ctx, s, cfg, a.log)
	if err != nil {
		return err
	}
	orphans := slices.DeleteFunc(paths, w.has)
	if len(orphans) == 0 {
		return nil
	}
	// A candidate of a former process must not go before its commands have:
	// another host would lead beside them.
	if err := a.hooks.WaitGuards(ctx, s.Timeout()); err != nil {
		return err
	}
	return a.deleteAll(ctx, s, orphans)
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

func (a *Agent) deleteAll(ctx context.Context, s *session.Session, orphans []string) error {
	for _, path := range orphans {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			a.log.Info("deleted what the settings do not want any more", "path", path)
		case session.IsPermanent(err):
			a.log.Warn("not deleted, though the settings do not want it any more", "path", path, "err", err)
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
	dirs  []string          // whose children are not told apart
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
			// Its znode cannot be told from others: all are kept.
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
	// Permits of rolling reloads and of rollouts are not adopted: whoever still
	// needs one asks again, and one that is kept would block the fleet.
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
