package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// relist reads the names of the children. A missing group is empty, and relist
// watches for it. After a failed read it tries again later, and the status shows
// the error meanwhile.
func (r *reader) relist(ctx context.Context) error {
	names, stat, w, err := r.s.ChildrenW(ctx, r.g.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		return r.awaitGroup(ctx)
	}
	if err != nil {
		return r.failed(ctx, fmt.Errorf("list %s: %w", r.g.cfg.Path, err))
	}
	r.list, r.known, r.g.unlisted, r.pzxid = w, true, "", stat.Pzxid
	r.saw(stat)
	r.compare(names)
	return nil
}

func (r *reader) awaitGroup(ctx context.Context) error {
	stat, ok, w, err := r.s.ExistsW(ctx, r.g.cfg.Path)
	if err != nil {
		return r.failed(ctx, fmt.Errorf("wait for %s: %w", r.g.cfg.Path, err))
	}
	if ok {
		w.Stop()
		r.saw(stat)
		return r.relist(ctx) // created meanwhile
	}
	r.list, r.known, r.g.unlisted, r.missing, r.changed, r.pzxid = w, true, "", true, true, 0
	for name := range r.nodes {
		r.drop(name)
	}
	clear(r.dirty)
	r.over = nil
	return nil
}

// failed decides whether an error ends this run. If not, the status shows it and
// the reader retries.
func (r *reader) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil || r.s.Context().Err() != nil {
		return err
	}
	r.g.log.Warn("cannot read the group", "group", r.g.cfg.Name, "path", r.g.cfg.Path, "err", err)
	r.g.mu.Lock()
	r.g.status.Error = err.Error()
	r.g.mu.Unlock()
	r.g.unlisted = err.Error()
	r.g.problem(err)
	if r.g.failed != nil && !r.known {
		r.g.failed()
	}
	return nil
}

// compare updates the copy to a list of names. It marks new names for reading.
func (r *reader) compare(names []string) {
	r.missing, r.changed, r.over = false, true, nil
	if n := r.g.cfg.MaxMembers; len(names) > n {
		slices.Sort(names) // So the same ones are left out each time.
		names, r.over = names[:n], names[n:]
	}
	r.round++
	found := 0
	fresh := make(map[string]bool)
	for _, name := range names {
		if c := r.nodes[name]; c != nil {
			c.round = r.round
			found++
		} else {
			fresh[name] = true
		}
	}
	if found < len(r.nodes) {
		for name, c := range r.nodes {
			if c.round != r.round {
				r.drop(name)
			}
		}
	}
	maps.DeleteFunc(r.dirty, func(name string, _ bool) bool { return r.nodes[name] == nil })
	maps.Copy(r.dirty, fresh)
}

// drop forgets a child.
func (r *reader) drop(name string) {
	if c := r.nodes[name]; c != nil {
		c.watch.Stop()
		r.forget(c)
		r.touch(name, c.member)
		delete(r.nodes, name)
	}
	delete(r.reasons, name)
	delete(r.retry, name)
	delete(r.dirty, name)
}
