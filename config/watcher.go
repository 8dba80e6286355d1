package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Watcher follows one config tree. It keeps the last good tree over sessions;
// Run must not be called again before it has returned.
type Watcher struct {
	cfg   Config
	log   *slog.Logger
	board board

	last *view.Tree // as passed on; only Run touches it
	up   func(view.Update)

	// Versions in memory, kept across sessions: digests name contents, so no
	// content is read twice. inUse is the version that ready named last. ahead is
	// the version that ReadVersion read last. nil: none.
	inUse, ahead atomic.Pointer[content]
	hosts        atomic.Int64 // as ready says
	badDelta     atomic.Int64 // the last version whose difference did not apply
}

// NewWatcher returns a Watcher for cfg. It does no I/O and starts nothing.
func NewWatcher(cfg Config) *Watcher {
	w := &Watcher{cfg: cfg, log: discard(cfg.Logger).With("component", "config", "tree", cfg.Name)}
	w.board.edit(func(s *Status) {
		s.Name, s.Path, s.Waiting, s.Since = cfg.Name, cfg.Path, "a session", time.Now()
	})
	return w
}

// Status returns the current status. It may be called at any time.
func (w *Watcher) Status() Status { return w.board.load() }

// Hosts returns how many agents subscribed when the version in use was published.
func (w *Watcher) Hosts() int { return int(w.hosts.Load()) }

// errLayout ends the following of one layout: the tree has another one now.
var errLayout = errors.New("tree has another layout")

// errSettings says that the Config is wrong.
var errSettings = errors.New("layout is unknown")

// Run calls up with the current tree and then after every completed change. It
// skips a tree that equals the last one, even from a former session. Run returns
// nil when ctx ends, and the cause when the session ends. It reports problems that
// a person can fix (a refused ACL, a wrong digest) in Status, and continues.
func (w *Watcher) Run(ctx context.Context, s *session.Session, up func(view.Update)) error {
	w.up = up
	w.board.edit(func(st *Status) { st.Following = true })
	defer func() {
		w.board.edit(func(st *Status) { st.Following = false })
		w.board.wait("a session")
	}()
	if err := session.ValidatePath(w.cfg.Path); err != nil {
		return fmt.Errorf("config %s: %w", w.cfg.Name, err)
	}
	// A new session may be served by a server that lags behind what the last one
	// showed: the tree would go back to a former state for a while.
	if err := s.Sync(ctx, w.cfg.Path); err != nil {
		if ended := mirror.Ended(ctx, s, err); ctx.Err() != nil || s.Context().Err() != nil {
			return ended
		}
		w.log.Warn("sync refused, the first state may be an older one", "err", err)
	}
	for {
		err := w.follow(ctx, s)
		switch {
		case errors.Is(err, errLayout):
			continue
		case err == nil || errors.Is(err, errSettings) || ctx.Err() != nil || s.Context().Err() != nil:
			return mirror.Ended(ctx, s, err)
		}
		// The session still lives, so retry later.
		w.setErr(err)
		if err = s.Sleep(ctx, retryPause); err != nil {
			return mirror.Ended(ctx, s, err)
		}
	}
}

// follow follows the tree in the layout that it has.
func (w *Watcher) follow(ctx context.Context, s *session.Session) error {
	switch w.cfg.Layout {
	case LayoutPlain:
		return w.followPlain(ctx, s)
	case LayoutFlat:
		return w.followFlat(ctx, s)
	case LayoutVersioned:
		return w.followVersioned(ctx, s)
	case "", LayoutAuto:
		versioned, err := w.detect(ctx, s)
		if err != nil {
			return err
		}
		if versioned {
			return w.followVersioned(ctx, s)
		}
		return w.followFlat(ctx, s)
	}
	return fmt.Errorf("config %s: %w: %q", w.cfg.Name, errSettings, w.cfg.Layout)
}

// auto reports whether the layout may change while the tree is followed.
func (w *Watcher) auto() bool { return w.cfg.Layout == "" || w.cfg.Layout == LayoutAuto }

// detect waits for ready and reports whether it announces a versioned tree.
func (w *Watcher) detect(ctx context.Context, s *session.Session) (bool, error) {
	for {
		data, _, err := s.Get(ctx, w.readyPath())
		switch {
		case err == nil:
			r, versioned, bad := ParseReady(data)
			w.log.Debug("layout found", "versioned", versioned, "version", r.Version)
			return versioned || bad != nil, nil // followVersioned reports the error
		case errors.Is(err, session.ErrNoNode):
			w.wait("for " + w.readyPath() + ", which does not exist")
		default:
			if err = w.failedRead(ctx, s, err); err != nil {
				return false, err
			}
		}
		_, ok, watch, err := s.ExistsW(ctx, w.readyPath())
		if err == nil && ok { // Unreadable, or created in between.
			_, err = watch.WaitFor(ctx, retryPause)
			watch.Stop()
		} else if err == nil {
			err = w.await(ctx, s, watch, session.Stat{})
		}
		if err != nil {
			return false, err
		}
	}
}

// await waits until the watch of ready fires, and stops it. Servers filter events
// by ACL, so await also checks periodically and returns when ready differs from
// was. A zero Stat means that ready was missing.
func (w *Watcher) await(ctx context.Context, s *session.Session, watch *session.Watch, was session.Stat) error {
	defer watch.Stop()
	for {
		if fired, err := watch.WaitFor(ctx, session.RecheckAfter()); fired || err != nil {
			return err
		}
		if w.moved(ctx, s, was) {
			return nil
		}
	}
}

// moved reports whether ready differs from was.
func (w *Watcher) moved(ctx context.Context, s *session.Session, was session.Stat) bool {
	st, _, err := s.Exists(ctx, w.readyPath())
	return err == nil && (st.Czxid != was.Czxid || st.Mzxid != was.Mzxid)
}

// retryPause is the pause before a retry without an event.
const retryPause = 5 * time.Second

// failedRead reports in Status an error that a person must fix. It returns err when
// the context or the session has ended.
func (w *Watcher) failedRead(ctx context.Context, s *session.Session, err error) error {
	if ctx.Err() != nil || s.Context().Err() != nil {
		return err
	}
	w.setErr(err)
	return nil
}

// setErr sets the current problem; nil: none.
func (w *Watcher) setErr(err error) {
	old := w.board.load().Err
	if err != nil && (old == nil || old.Error() != err.Error()) {
		w.log.Error("tree cannot be used", "path", w.cfg.Path, "err", err)
	}
	w.cfg.Metrics.setFailed(w.cfg.Name, err)
	w.board.edit(func(s *Status) { s.Err = err })
	if w.cfg.Problem != nil && (err != nil || old != nil) {
		w.cfg.Problem(err)
	}
}

// wait notes what the watcher waits for.
func (w *Watcher) wait(what string) {
	if w.board.load().Waiting != what {
		w.log.Info("tree not ready", "path", w.cfg.Path, "waiting", what)
	}
	w.board.wait(what)
}

// torn counts a discarded read.
func (w *Watcher) torn() {
	w.cfg.Metrics.tornRead(w.cfg.Name)
	w.board.edit(func(s *Status) { s.Torn++ })
}

// pass passes a good tree on, unless it equals the last one.
func (w *Watcher) pass(t *view.Tree) {
	w.setErr(nil)
	if w.last != nil && w.last.Equal(t) {
		w.board.wait("")
		return
	}
	w.last = t
	w.board.edit(func(s *Status) {
		s.Layout, s.Generation, s.Digest, s.Keys = t.Layout, t.Generation, t.Digest, t.Len()
		s.Waiting, s.Since = "", time.Now()
	})
	w.cfg.Metrics.passed(t)
	w.log.Info("tree ready", "path", w.cfg.Path, "layout", t.Layout, "generation", t.Generation, "keys", t.Len())
	w.up(t)
}

// options returns the mirror options for a flat or plain tree.
func (w *Watcher) options() mirror.Options {
	return mirror.Options{Skip: IsReserved, Quiet: isQuiet, Concurrency: w.cfg.concurrency, MaxBytes: w.cfg.maxBytes(), Logger: w.log}
}

// isQuiet reports whether a reserved key is safe to watch: many hosts write below
// the other ones.
func isQuiet(key string) bool { return key == elemReady || key == elemFreeze }

// readyPath is the path of ready.
func (w *Watcher) readyPath() string { return readyPath(w.cfg.Path) }

// readyPath is the path of a tree's ready.
func readyPath(root string) string { return session.JoinPath(root, elemReady) }
