package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/trees"
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
	inUse, ahead atomic.Pointer[trees.Content]
	hosts        atomic.Int64 // as ready says
	badDelta     atomic.Int64 // the last version whose difference did not apply
}

// NewWatcher returns a Watcher for cfg. It does no I/O and starts nothing.
func NewWatcher(cfg Config) *Watcher {
	w := &Watcher{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "config", "tree", cfg.Name)}
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
// skips a tree that equals the last one, even from a previous session. Run returns
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
		return w.within(ctx, s, w.followPlain)
	case LayoutFlat:
		return w.within(ctx, s, w.followFlat)
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
		return w.within(ctx, s, w.followFlat)
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
			r, versioned, bad := trees.ParseReady(data)
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
	next := session.RecheckAfter()
	if was.Czxid == 0 && w.had() {
		next = goneAfter
	}
	var version *session.Watch // of the version in use; nil: not armed
	defer func() { version.Stop() }()
	for late := false; ; late = true {
		timer := time.NewTimer(next)
		next = session.RecheckAfter()
		var deleted <-chan struct{}
		if version != nil {
			deleted = version.C()
		}
		select {
		case <-watch.C():
			timer.Stop()
			return nil
		case <-deleted:
			timer.Stop()
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-s.Done():
			timer.Stop()
			return context.Cause(s.Context())
		}
		if w.moved(ctx, s, was) {
			return nil
		}
		if was.Czxid == 0 {
			w.missing(ctx, s, late)
		} else if c := w.inUse.Load(); c != nil && (version == nil || version.Fired()) {
			version = w.checkVersion(ctx, s, c.Number)
		}
	}
}

// goneAfter is how long ready may be missing before the tree may count as deleted: tools
// may delete ready and create it again.
const goneAfter = 2 * time.Second

// had reports whether the tree was in use, here or in an earlier process.
func (w *Watcher) had() bool { return w.last != nil || w.cfg.Had }

// missing sets the problem of a tree that was in use and has no ready. While a flat tree
// is written in several steps it has keys and no ready; late says that this has taken
// long.
func (w *Watcher) missing(ctx context.Context, s *session.Session, late bool) {
	if !w.had() {
		return
	}
	names, _, err := s.Children(ctx, w.cfg.Path)
	switch written := slices.ContainsFunc(names, func(n string) bool { return !trees.IsReserved(n) }); {
	case err != nil && !errors.Is(err, session.ErrNoNode):
	case !written:
		w.setErr(fmt.Errorf("%s does not exist any more: %w; the last tree stays in use", w.readyPath(), ErrGone))
	case late:
		w.setErr(fmt.Errorf("%s does not exist, and there are keys: %w, or its writer died; the last tree stays in use", w.readyPath(), ErrGone))
	}
}

// checkVersion notes whether the version that ready names exists, and returns a watch
// for that to change.
func (w *Watcher) checkVersion(ctx context.Context, s *session.Session, n int64) *session.Watch {
	_, ok, watch, err := s.ExistsW(ctx, trees.VersionPath(w.cfg.Path, n))
	switch now := w.board.load().Err; {
	case err != nil:
	case !ok:
		w.setErr(fmt.Errorf("version %d, which ready names, does not exist any more: %w; hosts that hold it keep it, others cannot read it", n, ErrGone))
	case errors.Is(now, ErrGone):
		w.setErr(nil)
	}
	return watch
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

// pass passes a good tree on, unless it equals the last one or has too many keys.
func (w *Watcher) pass(t *view.Tree) {
	if t.Len() > MaxKeys {
		w.setErr(fmt.Errorf("the tree has %d keys, at most %d are allowed; the last good tree stays in use: %w", t.Len(), MaxKeys, ErrBounds))
		w.wait("for a smaller tree")
		return
	}
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

// within calls follow again and again while the tree has too many znodes to be copied.
// The last good tree stays in use. follow holds no copy meanwhile.
func (w *Watcher) within(ctx context.Context, s *session.Session, follow func(context.Context, *session.Session) error) error {
	for {
		err := follow(ctx, s)
		if !errors.Is(err, mirror.ErrTooMany) {
			return err
		}
		w.setErr(fmt.Errorf("%w: %w; the last good tree stays in use", err, ErrBounds))
		w.wait("for a smaller tree")
		if err := s.Sleep(ctx, session.RecheckAfter()); err != nil {
			return err
		}
	}
}

// options returns the mirror options for a flat or plain tree.
func (w *Watcher) options() mirror.Options {
	return mirror.Options{Skip: trees.IsReserved, Quiet: isQuiet, Concurrency: w.cfg.Concurrency, MaxBytes: w.cfg.maxBytes(), MaxZnodes: 2 * MaxKeys, Logger: w.log}
}

// isQuiet reports whether a reserved key is safe to watch: many hosts write below
// the other ones.
func isQuiet(key string) bool { return key == trees.ElemReady || key == trees.ElemFreeze }

// readyPath is the path of ready.
func (w *Watcher) readyPath() string { return trees.ReadyPath(w.cfg.Path) }
