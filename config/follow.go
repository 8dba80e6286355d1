package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Following a versioned tree.
//
// Steps: read ready with a watch; read the parts of its version that differ from
// the one in use; verify every digest; pass the tree on; wait for the watch and for
// a random part of the splay. A version never changes, so a read cannot mix two
// states.
//
// Cost: one watch, whatever the size of the tree; per version one request for
// ready. If ready has no usable difference to a version in memory, there are more:
// one for the version, one per 64 buckets that differ, one per 512 kB of new
// values.

// followVersioned returns [errLayout] when ready announces a flat tree, in layout auto.
func (w *Watcher) followVersioned(ctx context.Context, s *session.Session) error {
	for {
		data, st, watch, err := s.GetW(ctx, w.readyPath())
		if errors.Is(err, session.ErrNoNode) {
			var found bool
			_, found, watch, err = s.ExistsW(ctx, w.readyPath())
			if err == nil && !found {
				if err := w.await(ctx, s, watch, session.Stat{}); err != nil {
					return err
				}
			}
			watch.Stop()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("read ready: %w", err)
		}
		retry, err := w.use(ctx, s, data, st)
		switch {
		case err != nil:
		case retry:
			_, err = watch.WaitFor(ctx, retryPause)
		default:
			err = w.await(ctx, s, watch, st)
		}
		watch.Stop()
		if err == nil && !retry && w.cfg.Splay > 0 {
			err = s.Sleep(ctx, rand.N(w.cfg.Splay)) //nolint:gosec // It spreads load and is no secret.
		}
		if err != nil {
			return err
		}
	}
}

// use loads the version that ready names and passes it on. The first result is true
// when the caller should retry without waiting for an event.
func (w *Watcher) use(ctx context.Context, s *session.Session, data []byte, st session.Stat) (bool, error) {
	r, versioned, err := trees.ParseReady(data)
	if !versioned {
		err = errors.New("ready belongs to a flat tree, the settings say versioned")
		if w.auto() {
			err = cmp.Or(trees.CheckFlat(ctx, s, w.cfg.Path, st), errLayout)
		}
		if errors.Is(err, errLayout) {
			return false, err
		}
		return w.auto(), w.failedRead(ctx, s, err)
	}
	if err != nil {
		w.setErr(err)
		return false, nil
	}
	c, err := w.version(ctx, s, r.Version, r.Digest, r.Delta)
	if err != nil {
		if errors.Is(err, trees.ErrGone) {
			w.torn()
		}
		if errors.Is(err, ErrBounds) {
			w.wait("for a smaller tree")
			return false, w.failedRead(ctx, s, err)
		}
		w.wait(fmt.Sprintf("for version %d to be readable", r.Version))
		return true, w.failedRead(ctx, s, err)
	}
	w.hosts.Store(int64(r.Hosts))
	w.inUse.Store(c)
	w.lost = trees.Digest{}
	w.pass(c.Tree(w.cfg.Name, w.cfg.Path, r, max(st.Czxid, st.Mzxid, st.Pzxid)))
	return false, nil
}

// ReadVersion reads any version, like the function [ReadVersion], but only the
// parts that differ from the one in use. So a fleet that votes on a version reads
// only its changes. It may be called at any time.
func (w *Watcher) ReadVersion(ctx context.Context, s *session.Session, n int64) (*view.Tree, error) {
	c, err := trees.Load(ctx, s, w.cfg.Path, n, w.nearest(n), w.cfg.maxBytes())
	return w.readAhead(c, err)
}

// ReadProposed is like [Watcher.ReadVersion] when the caller knows the digest of
// the version, and perhaps its difference to the one in use. It costs no request if
// the digest is in memory or the difference applies.
func (w *Watcher) ReadProposed(ctx context.Context, s *session.Session, n int64, sum string, d *trees.Delta) (*view.Tree, error) {
	c, err := w.version(ctx, s, n, sum, d)
	return w.readAhead(c, err)
}

func (w *Watcher) readAhead(c *trees.Content, err error) (*view.Tree, error) {
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", w.cfg.Path, err)
	}
	w.ahead.Store(c)
	return c.Tree(w.cfg.Name, w.cfg.Path, trees.Ready{Previous: c.Parent}, 0), nil
}

// version returns the version with the digest. It looks in memory, then applies the
// difference to a version in memory, then reads from ZooKeeper.
func (w *Watcher) version(ctx context.Context, s *session.Session, n int64, sum string, d *trees.Delta) (*trees.Content, error) {
	want, err := trees.ParseDigest(sum)
	if err != nil {
		return nil, err
	}
	held := []*trees.Content{w.inUse.Load(), w.ahead.Load()}
	for _, have := range held {
		if have != nil && have.Sum == want {
			c := &trees.Content{Manifest: have.Manifest, Lists: have.Lists, Keys: have.Keys}
			c.Number = n
			return c, nil
		}
	}
	for _, have := range held {
		if have == nil || d == nil || w.cfg.NoDelta || d.From != have.Sum.String() {
			continue
		}
		c, err := have.Apply(d, n, want)
		if err == nil {
			return c, trees.WithinLimit(c.Number, c.Count, c.Size, w.cfg.maxBytes())
		}
		w.cfg.Metrics.deltas.WithLabelValues(w.cfg.Name).Inc()
		if w.badDelta.Swap(n) != n {
			w.log.Warn("difference not used, the version is read", "path", w.cfg.Path, "version", n, "err", err)
		}
	}
	c, err := trees.Load(ctx, s, w.cfg.Path, n, w.nearest(n), w.cfg.maxBytes())
	if err == nil && c.Sum != want {
		err = fmt.Errorf("version %d is %s, %s is wanted: %w", n, c.Sum, want, ErrDigest)
	}
	return c, err
}

// nearest returns the version in memory that differs least from the version.
func (w *Watcher) nearest(version int64) *trees.Content {
	if c := w.ahead.Load(); c != nil && c.Number == version {
		return c
	}
	return w.inUse.Load()
}

// treeCopy is a live copy of a flat or plain tree in one session.
type treeCopy struct {
	w *Watcher
	s *session.Session
	m *mirror.Mirror

	keys    *view.Keys
	touched map[string]struct{} // read, but not yet passed on
}

func (w *Watcher) newCopy(s *session.Session) *treeCopy {
	return &treeCopy{w: w, s: s, touched: map[string]struct{}{}, m: mirror.New(s, w.cfg.Path, mirror.Options{
		Skip: trees.IsReserved, Concurrency: w.cfg.Concurrency, MaxBytes: w.cfg.maxBytes(), MaxZnodes: 2 * MaxKeys, Logger: w.log,
		// Many hosts write below the other reserved znodes.
		Quiet: func(key string) bool { return key == trees.ElemReady || key == trees.ElemFreeze },
	})}
}

func (c *treeCopy) refresh(ctx context.Context) (*mirror.Snapshot, error) {
	snap, changed, err := c.m.Refresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", c.w.cfg.Path, err)
	}
	for _, rel := range changed {
		c.touched[rel] = struct{}{}
	}
	return snap, nil
}

// pass passes on a copy as a tree, unless a part of it cannot be read. A znode with
// children and without data is no key: it only holds its children.
func (c *treeCopy) pass(snap *mirror.Snapshot, t view.Tree) {
	if snap.TooLarge {
		c.w.setErr(trees.TooLarge(snap.Bytes, snap.Len(), "znodes", c.w.cfg.maxBytes()))
		c.w.wait("for a smaller tree")
		return
	}
	if errs := snap.Errors(); len(errs) > 0 {
		rels := slices.Sorted(maps.Keys(errs))
		more := ""
		if len(rels) > 1 {
			more = fmt.Sprintf(" and %d more", len(rels)-1)
		}
		c.w.setErr(fmt.Errorf("read key %q%s: %w", rels[0], more, errs[rels[0]]))
		c.w.wait("for every key to be readable")
		return
	}
	edit := c.keys.Edit()
	for _, rel := range slices.Sorted(maps.Keys(c.touched)) {
		n, ok := snap.Get(rel)
		switch {
		case rel == "": // The root is no key.
			continue
		case !ok || len(n.Children) > 0 && (len(n.Data) == 0 || c.w.cfg.Layout == LayoutLeaves):
			edit.Delete(rel)
			continue
		}
		old, had := edit.Get(rel)
		if !had || old.Mzxid != n.Stat.Mzxid {
			edit.Set(rel, view.Key{Value: n.Data, Mzxid: n.Stat.Mzxid, Mtime: n.Stat.Mtime})
		}
	}
	c.keys, c.touched = edit.Done(), map[string]struct{}{} // Release it: it held every path of the first read.
	t.Name, t.Path = c.w.cfg.Name, c.w.cfg.Path
	c.w.pass(view.NewTree(t, c.keys))
}

// followPlain follows a tree without a ready rule. It passes on each change as it
// reads it. A change that a writer makes in several steps may be seen half done.
func (w *Watcher) followPlain(ctx context.Context, s *session.Session) error {
	c := w.newCopy(s)
	defer c.m.Close()
	for {
		snap, err := c.refresh(ctx)
		if err != nil {
			return err
		}
		if snap.Exists() || snap.TooLarge || len(snap.Errors()) > 0 {
			c.pass(snap, view.Tree{Layout: LayoutPlain, Last: snap.Last})
		} else {
			// The last tree stays: a missing root is not an empty tree.
			if w.had() {
				w.setErr(fmt.Errorf("%s does not exist any more: %w; the last tree stays in use", w.cfg.Path, ErrGone))
			}
			w.wait("for " + w.cfg.Path + ", which does not exist")
		}
		select {
		case <-c.m.Dirty():
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
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

// The ready rule, the reader's side.
//
//	<root>/ready      the tree is complete while it exists
//	<root>/<key...>   the keys
//
// Source: ZooKeeper paper (Hunt and others, USENIX ATC 2010), 2.3: a writer deletes
// ready, changes the configuration, and creates ready; a reader uses the keys only
// while ready exists, and starts again when it gets the event that ready is gone.
//
// Steps: (1) read ready with a watch; absent: wait for the watch, reading nothing
// else. (2) Read what changed. (3) If the watch of (1) fired meanwhile, discard the
// result and begin again. Otherwise pass it on. While ready exists, repeat (2) and (3)
// for each change.
//
// Why this is enough: ZooKeeper delivers the event of a change before any reply
// that shows a later state, and the session keeps that order. It does so over a new
// connection, too: the first request there sets the watches again, and the server
// answers with the events of what changed meanwhile. So if no event for ready came
// before the last reply, ready existed with one czxid from (1) to the last read, and
// every key was read while ready existed.
//
// Cost: one request per changed key, and per generation at most three more:
// ready gone, ready back, the list of the root (of which ready is a child).
//
// Not guaranteed: if a writer changes keys while ready exists, the reader passes
// them on one by one. A server sends no event to a reader that has no right to read
// the znode. Such a reader notices a change of ready or a key only by its periodic
// check, every 30 to 60 seconds. Until then its tree may be a mix. Before the reader
// passes on a tree that has lost znodes, it looks at ready again. So it keeps its last
// tree when a conversion to a versioned tree deletes the flat keys.

// flat follows a flat tree in one session.
type flat struct {
	*treeCopy

	ready session.Stat // as of step 1
}

// followFlat returns [errLayout] when ready announces a versioned tree, in layout auto.
func (w *Watcher) followFlat(ctx context.Context, s *session.Session) error {
	f := &flat{treeCopy: w.newCopy(s)}
	defer f.m.Close()
	for {
		st, ok, watch, err := s.ExistsW(ctx, w.readyPath())
		if err != nil {
			return fmt.Errorf("read ready: %w", err)
		}
		if ok {
			err = f.standing(ctx, st, watch)
		} else {
			err = w.await(ctx, s, watch, session.Stat{})
		}
		watch.Stop()
		if err != nil {
			return err
		}
	}
}

// standing passes on the tree and its changes as long as ready exists.
func (f *flat) standing(ctx context.Context, st session.Stat, watch *session.Watch) error {
	if good, err := f.checkLayout(ctx, st, watch); err != nil || !good {
		return err
	}
	f.ready = st
	look := time.NewTimer(session.RecheckAfter())
	defer look.Stop()
	had := 0 // znodes of the last read
	for {
		snap, err := f.refresh(ctx)
		if err != nil {
			return err
		}
		if snap.Len() < had { // no writer deletes keys while ready exists
			now, _, err := f.s.Exists(ctx, f.w.readyPath())
			if err != nil {
				return fmt.Errorf("read ready: %w", err)
			}
			if now.Mzxid != st.Mzxid {
				f.w.torn()
				return nil
			}
		}
		had = snap.Len()
		if watch.Fired() {
			f.w.torn()
			return nil
		}
		f.pass(snap, view.Tree{Layout: LayoutFlat, Generation: st.Czxid, Last: max(snap.Last, st.Czxid, st.Mzxid, st.Pzxid)})
		select {
		case <-f.m.Dirty():
		case <-watch.C():
			return nil
		case <-look.C:
			if f.w.moved(ctx, f.s, st) {
				return nil
			}
			look.Reset(session.RecheckAfter())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.s.Done():
			return context.Cause(f.s.Context())
		}
		if watch.Fired() {
			return nil
		}
	}
}

// checkLayout reports whether ready belongs to a flat tree. If it does not, or is
// unreadable, the last tree stays in use and checkLayout waits until it is time to
// look again. It costs one request, or none if ready is empty or was checked
// before.
func (f *flat) checkLayout(ctx context.Context, st session.Stat, watch *session.Watch) (bool, error) {
	if st.DataLength == 0 || st.Mzxid == f.ready.Mzxid {
		return true, nil
	}
	data, now, err := f.s.Get(ctx, f.w.readyPath())
	if err != nil {
		if err = f.w.failedRead(ctx, f.s, fmt.Errorf("read ready: %w", err)); err == nil {
			f.w.wait("for " + f.w.readyPath() + " to be readable")
			_, err = watch.WaitFor(ctx, retryPause)
		}
		return false, err
	}
	_, versioned, _ := trees.ParseReady(data)
	switch {
	case !versioned:
		return now.Mzxid == st.Mzxid, nil // otherwise ready has changed in between
	case f.w.auto():
		return false, errLayout
	}
	f.w.setErr(errors.New("ready names a version of a versioned tree, the settings say flat"))
	f.w.wait("for a flat tree")
	return false, f.w.await(ctx, f.s, watch, now)
}
