// Package leftover deletes znodes that the agent's session owns and the settings no
// longer name.
//
// A member, a candidate or a subscription would otherwise stay for as long as the session
// lives. There are two occasions:
//
//   - A session was taken over from a previous process. It is compared with the
//     settings before any unit works in it ([Sweeper.Session]).
//   - Units of previous settings could not delete what they had, because ZooKeeper
//     was unreachable when they left ([Sweeper.Add] and [Sweeper.Run]).
//
// Guaranteed: nothing that the present settings want is deleted, nor a znode whose
// owner among the units is not known. A candidate goes after its commands have ended.
//
// Not guaranteed: a server that cannot list what a session owns, or that refuses,
// keeps no unit from its work; the znodes then go with the session.
package leftover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// Settings tell what they want. Two values that are equal want the same.
type Settings interface {
	Wanted(ctx context.Context, s *session.Session) (*Wanted, error)
}

// Wanted is what the units of the settings may own.
type Wanted struct {
	Paths map[string]bool
	Lines map[string]string // path of an election -> mark of its candidates
	Dirs  []string          // whose children have no known owner
}

// Owner is what a Sweeper needs of the agent.
type Owner struct {
	Session func(ctx context.Context) (*session.Session, error)
	Present func() Settings
	// First does what comes before a znode goes: the commands of a previous process
	// end, and the other hosts learn of its failures.
	First func(ctx context.Context, s *session.Session) error
	Log   *slog.Logger
}

// Sweeper deletes leftovers. It is safe for concurrent use.
type Sweeper struct {
	owner Owner
	wake  chan struct{} // size 1: Add was called

	turn     chan struct{} // size 1: the sender compares, the others wait
	compared atomic.Bool   // only the first session of a process can be a resumed one

	mu     sync.Mutex // mu guards former.
	former []Settings
}

// New returns a Sweeper.
func New(owner Owner) *Sweeper {
	return &Sweeper{owner: owner, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// Session waits for a session in which units may work.
func (w *Sweeper) Session(ctx context.Context) (*session.Session, error) {
	for {
		s, err := w.owner.Session(ctx)
		if err != nil || !s.Resumed() || w.compared.Load() {
			return s, err
		}
		if err := w.compare(ctx, s); err != nil {
			return nil, err
		}
	}
}

// compare sweeps s unless that has been done, or its session has ended.
func (w *Sweeper) compare(ctx context.Context, s *session.Session) error {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.turn }()
	if w.compared.Load() || s.Context().Err() != nil {
		return nil
	}
	for last := Settings(nil); last != w.owner.Present(); {
		last = w.owner.Present()
		if err := w.sweep(ctx, s, nil); err != nil {
			return err
		}
	}
	w.compared.Store(true)
	return nil
}

// Add notes settings whose units have been stopped.
func (w *Sweeper) Add(old Settings) {
	w.mu.Lock()
	w.former = append(w.former, old)
	w.mu.Unlock()
	pace.Notify(w.wake)
}

// Run deletes what Add has noted until ctx or the session ends. While ZooKeeper is unreachable its requests wait, so
// that what was left goes as soon as it is.
func (w *Sweeper) Run(ctx context.Context, s *session.Session) error {
	for {
		w.mu.Lock()
		former := slices.Clone(w.former)
		w.mu.Unlock()
		if len(former) > 0 {
			if err := w.sweep(ctx, s, former); err != nil {
				return nil //nolint:nilerr // a unit that was stopped has no error.
			}
		}
		if s.Context().Err() == nil {
			w.mu.Lock()
			w.former = w.former[len(former):]
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

// sweep deletes what the session owns and the settings no longer name; with former
// settings, only what those wanted. It tries until it is done or the session has
// ended, and returns an error only when ctx ends: a server that does not know,
// or refuses, keeps no unit from its work.
func (w *Sweeper) sweep(ctx context.Context, s *session.Session, former []Settings) error {
	log := w.owner.Log
	for failures := 1; ; failures++ {
		err := w.delete(ctx, s, former)
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

func (w *Sweeper) delete(ctx context.Context, s *session.Session, former []Settings) error {
	paths, err := owned(ctx, s)
	if err != nil {
		return err
	}
	now, err := w.owner.Present().Wanted(ctx, s)
	if err != nil {
		return err
	}
	var before []*Wanted
	for _, old := range former {
		was, err := old.Wanted(ctx, s)
		if err != nil {
			return err
		}
		was.Dirs = nil // a znode without a known owner is left alone
		before = append(before, was)
	}
	paths = slices.DeleteFunc(paths, func(path string) bool {
		return now.has(path) || former != nil && !slices.ContainsFunc(before, func(was *Wanted) bool { return was.has(path) })
	})
	if len(paths) == 0 {
		return nil
	}
	// A candidate of a previous process must not go before its commands have: another
	// host would lead beside them. Nor may a permit go before the halt stands.
	if err := w.owner.First(ctx, s); err != nil {
		return err
	}
	return w.deleteAll(ctx, s, paths)
}

// owned lists what the session owns. The sync makes a server that lags show what
// was done last.
func owned(ctx context.Context, s *session.Session) ([]string, error) {
	if err := s.Sync(ctx, "/"); err != nil {
		return nil, fmt.Errorf("sync: %w", err)
	}
	paths, err := s.Ephemerals(ctx, "/")
	if err != nil {
		return nil, fmt.Errorf("list the znodes of the session: %w", err)
	}
	slices.Sort(paths)
	return paths, nil
}

func (w *Sweeper) deleteAll(ctx context.Context, s *session.Session, paths []string) error {
	for _, path := range paths {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			w.owner.Log.Info("deleted a znode that the settings no longer name", "path", path)
		case session.ActionFor(err) == session.GiveUp:
			w.owner.Log.Warn("cannot delete a znode that the settings no longer name", "path", path, "err", err)
		default:
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
	return nil
}

func (w *Wanted) has(path string) bool {
	dir, name := session.SplitPath(path)
	if w.Paths[path] || slices.Contains(w.Dirs, dir) {
		return true
	}
	if mark, ok := w.Lines[dir]; ok {
		_, candidate := recipe.ParseSequence(name, mark)
		return candidate
	}
	return false
}
