package config

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// followPlain follows a tree without a ready rule. It passes on each change as it
// reads it. A change that a writer makes in several steps may be seen half done.
func (w *Watcher) followPlain(ctx context.Context, s *session.Session) error {
	m := mirror.New(s, w.cfg.Path, w.options())
	defer m.Close()
	var keys flatKeys
	touched := map[string]struct{}{}
	for {
		snap, changed, err := m.Refresh(ctx)
		if err != nil {
			return fmt.Errorf("read tree %s: %w", w.cfg.Path, err)
		}
		for _, rel := range changed {
			touched[rel] = struct{}{}
		}
		switch err := w.unreadable(snap); {
		case err != nil:
			w.setErr(err)
			w.wait(waitFor(snap))
		case !snap.Exists():
			// The last tree stays: a missing root is not an empty tree.
			if w.had() {
				w.setErr(fmt.Errorf("%s does not exist any more: %w; the last tree stays in use", w.cfg.Path, ErrGone))
			}
			w.wait("for " + w.cfg.Path + ", which does not exist")
		default:
			w.pass(view.NewTree(view.Tree{
				Name: w.cfg.Name, Path: w.cfg.Path, Layout: LayoutPlain, Last: snap.Last,
			}, keys.update(snap, touched)))
			touched = map[string]struct{}{} // Release it: it held every path of the first read.
		}
		select {
		case <-m.Dirty():
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}
