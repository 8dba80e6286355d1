package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Status is the state of a config: the tree in use, and the znode that the watcher waits for.
type Status struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Layout string `json:"layout"` // as found: flat, versioned or plain; empty until known
	// Following says that a session is being used.
	Following bool `json:"following"`
	// Waiting describes in words the event that the watcher waits for. It is empty when the latest
	// state of the tree is in use.
	Waiting string `json:"waiting,omitempty"`
	// Since is when Waiting or the tree in use last changed.
	Since time.Time `json:"since"`
	// Generation, Digest and Keys describe the tree in use. They are zero before
	// the first tree.
	Generation int64  `json:"generation"`
	Digest     string `json:"digest,omitempty"`
	Keys       int    `json:"keys"`
	// Torn counts reads that were discarded because the tree changed meanwhile.
	Torn uint64 `json:"torn"`
	// Err is the current problem or nil. The last good tree stays in use.
	Err error `json:"-"`
}

// Watcher follows one config tree. It keeps the last good tree over sessions;
// Run must not be called again before it has returned.
type Watcher struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex // guards status
	status Status

	last *view.Tree // as passed on; only Run touches it
	up   func(view.Update)

	// Versions in memory, kept across sessions: digests name contents, so no
	// content is read twice. inUse is the version that ready named last. ahead is
	// the version that ReadVersion read last. nil: none.
	inUse, ahead atomic.Pointer[trees.Content]
	hosts        atomic.Int64 // as ready says
	badDelta     atomic.Int64 // the last version whose difference did not apply
	lost         trees.Digest // the object of inUse that was missing; only Run touches it
}

// NewWatcher returns a Watcher for cfg. It does no I/O and starts nothing.
func NewWatcher(cfg Config) *Watcher {
	if cfg.Metrics == nil {
		cfg.Metrics = newMetrics()
	}
	return &Watcher{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "config", "tree", cfg.Name),
		status: Status{Name: cfg.Name, Path: cfg.Path, Waiting: "a session", Since: time.Now()},
	}
}

// Status returns the current status. It may be called at any time.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *Watcher) edit(fn func(*Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(&w.status)
}

// setWaiting keeps the start time of a wait that continues.
func (w *Watcher) setWaiting(what string) {
	w.edit(func(s *Status) {
		if s.Waiting != what {
			s.Waiting, s.Since = what, time.Now()
		}
	})
}

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
	w.edit(func(st *Status) { st.Following = true })
	defer func() {
		w.edit(func(st *Status) { st.Following = false })
		w.setWaiting("a session")
	}()
	s = session.Usable(s, w.cfg.Path, up != nil)
	// A new session may be served by a server that lags behind what the last one
	// showed: the tree would go back to a previous state for a while.
	if err := s.Sync(ctx, w.cfg.Path); err != nil {
		if ctx.Err() != nil || s.Context().Err() != nil {
			return mirror.Ended(ctx, s, err)
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

func (w *Watcher) follow(ctx context.Context, s *session.Session) error {
	switch w.cfg.Layout {
	case LayoutPlain, LayoutLeaves:
		return w.within(ctx, s, w.followPlain)
	case LayoutFlat:
		return w.within(ctx, s, w.followFlat)
	case LayoutVersioned:
		return w.followVersioned(ctx, s)
	case "", LayoutAuto:
		if err := w.followVersioned(ctx, s); !errors.Is(err, errLayout) {
			return err
		}
		return w.within(ctx, s, w.followFlat)
	}
	return fmt.Errorf("config %s: %w: %q", w.cfg.Name, errSettings, w.cfg.Layout)
}

// auto reports whether the layout may change while the tree is followed.
func (w *Watcher) auto() bool { return w.cfg.Layout == "" || w.cfg.Layout == LayoutAuto }

// await waits until the watch of ready fires, and stops it. Servers filter events
// by ACL, so await also checks periodically and returns when ready differs from
// was. A zero Stat means that ready was missing.
func (w *Watcher) await(ctx context.Context, s *session.Session, watch *session.Watch, was session.Stat) error {
	defer watch.Stop()
	next := session.RecheckAfter()
	if was.Czxid == 0 {
		w.wait("for " + w.readyPath() + ", which does not exist")
		if w.had() {
			next = goneAfter
		}
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	var version *session.Watch // of the version in use; nil: not armed
	defer func() { version.Stop() }()
	for late := false; ; late = true {
		select {
		case <-watch.C():
			return nil
		case <-version.C():
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return context.Cause(s.Context())
		}
		timer.Reset(session.RecheckAfter())
		if w.moved(ctx, s, was) {
			return nil
		}
		if was.Czxid == 0 {
			w.missing(ctx, s, late)
		} else if c := w.inUse.Load(); c != nil {
			version = w.checkVersion(ctx, s, c, version)
		}
	}
}

// goneAfter is how long ready may be missing: tools may delete it and create it again.
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

// checkVersion notes whether the version that ready names exists, and watches it. Each
// time it also looks for one of its objects: one that was missing, or a random one. So
// the hosts of a fleet find together what a tool has deleted, at one request each.
func (w *Watcher) checkVersion(ctx context.Context, s *session.Session, c *trees.Content, watch *session.Watch) *session.Watch {
	var gone error
	ok, err := true, error(nil)
	if watch == nil || watch.Fired() {
		_, ok, watch, err = s.ExistsW(ctx, trees.VersionPath(w.cfg.Path, c.Number))
	}
	if !ok {
		gone = trees.NoVersionError(c.Number)
	} else if err == nil {
		stored := true
		if w.lost == (trees.Digest{}) {
			w.lost, stored = c.RandomObject()
		}
		if ok = !stored; stored {
			_, ok, err = s.Exists(ctx, trees.ObjectPath(w.cfg.Path, w.lost))
		}
		if ok {
			w.lost = trees.Digest{}
		} else {
			gone = fmt.Errorf("object %s: %w", w.lost, ErrGone)
		}
	}
	switch now := w.Status().Err; {
	case err != nil:
	case gone != nil:
		w.setErr(fmt.Errorf("ready names version %d, which is not complete any more: %w; hosts that hold it keep it, others cannot read it", c.Number, gone))
	case errors.Is(now, ErrGone):
		w.setErr(nil)
	}
	return watch
}

func (w *Watcher) moved(ctx context.Context, s *session.Session, was session.Stat) bool {
	st, _, err := s.Exists(ctx, w.readyPath())
	return err == nil && (st.Czxid != was.Czxid || st.Mzxid != was.Mzxid)
}

// retryPause is the pause before a retry without an event.
const retryPause = 5 * time.Second

// failedRead sets the problem. It returns err when the context or the session has ended.
func (w *Watcher) failedRead(ctx context.Context, s *session.Session, err error) error {
	if ctx.Err() != nil || s.Context().Err() != nil {
		return err
	}
	w.setErr(err)
	return nil
}

func (w *Watcher) setErr(err error) {
	old := w.Status().Err
	if err != nil && (old == nil || old.Error() != err.Error()) {
		w.log.Error("tree cannot be used", "path", w.cfg.Path, "err", err)
	}
	failed := 0.0
	if err != nil {
		failed = 1
	}
	w.cfg.Metrics.failed.WithLabelValues(w.cfg.Name).Set(failed)
	w.edit(func(s *Status) { s.Err = err })
	if w.cfg.Problem != nil && (err != nil || old != nil) {
		w.cfg.Problem(err)
	}
}

func (w *Watcher) wait(what string) {
	if w.Status().Waiting != what {
		w.log.Info("tree not ready", "path", w.cfg.Path, "waiting", what)
	}
	w.setWaiting(what)
}

func (w *Watcher) torn() {
	w.cfg.Metrics.torn.WithLabelValues(w.cfg.Name).Inc()
	w.edit(func(s *Status) { s.Torn++ })
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
		w.setWaiting("")
		return
	}
	w.last = t
	w.edit(func(s *Status) {
		s.Layout, s.Generation, s.Digest, s.Keys = t.Layout, t.Generation, t.Digest, t.Len()
		s.Waiting, s.Since = "", time.Now()
	})
	m, name := w.cfg.Metrics, w.cfg.Name
	m.generation.WithLabelValues(name).Set(float64(t.Generation))
	m.changed.WithLabelValues(name).SetToCurrentTime()
	m.keys.WithLabelValues(name).Set(float64(t.Len()))
	w.log.Info("tree ready", "path", w.cfg.Path, "layout", t.Layout, "generation", t.Generation, "keys", t.Len())
	w.up(t)
}

func (w *Watcher) readyPath() string { return trees.ReadyPath(w.cfg.Path) }

// Sessions provides the session to work in. A [session.Manager] implements it. [In]
// wraps a single session.
type Sessions interface {
	// Session waits for a session that has connected and has not ended.
	Session(ctx context.Context) (*session.Session, error)
}

// In returns a [Sessions] with a single session. After that session ends, Session
// returns an error.
func In(s *session.Session) Sessions { return oneSession{session.Usable(s, "/")} }

type oneSession struct{ s *session.Session }

// Session implements [Sessions].
func (o oneSession) Session(ctx context.Context) (*session.Session, error) {
	if err := o.s.Context().Err(); err != nil {
		return nil, context.Cause(o.s.Context())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return o.s, nil
}

// Follow calls use with the current tree of a config and then after every completed
// change. It continues across sessions. Calls do not overlap: a slow call delays
// the next one, which then gets the latest tree. Follow skips a tree that equals
// the last one, even in a new session. It never changes a tree that it has passed
// on.
//
// Follow returns nil when ctx ends, and an error when cfg is invalid or no further
// session will come. It logs problems that a person can fix, such as an ACL, and
// continues. A program that wants to show such problems uses a [Watcher].
func Follow(ctx context.Context, sessions Sessions, cfg Config, use func(*view.Tree)) error {
	if sessions == nil {
		return fmt.Errorf("config %s: %w", cfg.Name, session.ErrNoSession)
	}
	w := NewWatcher(cfg)
	for {
		s, err := sessions.Session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller has ended it
		}
		if err != nil {
			return err
		}
		err = w.Run(ctx, session.Usable(s, cfg.Path, use != nil), func(u view.Update) {
			if tree, ok := u.(*view.Tree); ok {
				use(tree)
			}
		})
		if err != nil && !errors.Is(err, session.ErrExpired) && !errors.Is(err, session.ErrClosed) {
			return err
		}
	}
}

// Metrics counts the events of watchers. A nil *Metrics counts nothing.
type Metrics struct {
	generation *prometheus.GaugeVec
	changed    *prometheus.GaugeVec
	keys       *prometheus.GaugeVec
	torn       *prometheus.CounterVec
	deltas     *prometheus.CounterVec
	failed     *prometheus.GaugeVec
}

// NewMetrics registers the metrics of config trees.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := newMetrics()
	reg.MustRegister(m.generation, m.changed, m.keys, m.torn, m.deltas, m.failed)
	return m
}

func newMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "zkagent_tree_" + name, Help: help}, []string{"tree"})
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "zkagent_tree_" + name, Help: help}, []string{"tree"})
	}
	return &Metrics{
		generation: gauge("generation", "Generation of the tree that ready names: a version, or the czxid of ready. A host may still use another one."),
		changed:    gauge("generation_timestamp_seconds", "When the tree that ready names was read."),
		keys:       gauge("keys", "Keys of the tree in use."),
		failed:     gauge("failed", "1 while the latest state of the tree cannot be used."),
		torn:       counter("torn_reads_total", "Readings that were thrown away because the tree changed meanwhile."),
		deltas:     counter("delta_mismatches_total", "Differences in ready that did not lead to the published version, so that the agent read it whole."),
	}
}
