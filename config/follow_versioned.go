package config

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

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
		retry, err := w.use(ctx, s, data, max(st.Czxid, st.Mzxid, st.Pzxid))
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
func (w *Watcher) use(ctx context.Context, s *session.Session, data []byte, last int64) (bool, error) {
	r, versioned, err := trees.ParseReady(data)
	if !versioned {
		if w.auto() {
			return false, errLayout
		}
		w.setErr(errors.New("ready belongs to a flat tree, the settings say versioned"))
		return false, nil
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
	w.pass(c.Tree(w.cfg.Name, w.cfg.Path, r, last))
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
