package mirror

import (
	"context"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// mark names what is to be read again: the data of a znode, or its children. A znode
// that is gone is not read: the list of its parent changes, too.
type mark struct {
	rel  string
	kids bool
	gone bool
}

// marks collects what is to be read again: watches that fired, and what was
// marked for another reason.
type marks struct {
	queue *session.WatchQueue

	mu  sync.Mutex // guards own
	own map[mark]struct{}
}

func newMarks() *marks { return &marks{queue: session.NewWatchQueue(), own: map[mark]struct{}{}} }

// mark notes that something is to be read again.
func (k *marks) mark(m mark) {
	k.mu.Lock()
	k.own[m] = struct{}{}
	k.mu.Unlock()
	k.queue.Wake()
}

// gather notes the watches that have fired. It reports whether only data is to be read.
func (k *marks) gather(root string) bool {
	rung := k.queue.Take()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range rung {
		if rel := relative(root, r.Watch.Path()); rel != "" && r.Watch.Gone() {
			k.own[mark{rel: rel, gone: true}] = struct{}{}
		} else {
			k.own[mark{rel: rel, kids: r.Children}] = struct{}{}
		}
	}
	for m := range k.own {
		if m.kids || m.rel == "" {
			return false
		}
	}
	return len(k.own) > 0
}

// take returns what was marked since the last call. Every event that the session
// received before the call is among it.
func (k *marks) take(root string) map[mark]struct{} {
	k.gather(root)
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.own
	k.own = map[mark]struct{}{}
	return all
}

// settle waits for Options.Settle while only data is to be read: when a list changes as
// well, one Refresh is enough for both.
func (m *Mirror) settle(ctx context.Context) error {
	if m.opt.Settle <= 0 || !m.todo.gather(m.root) {
		return nil
	}
	timer := time.NewTimer(m.opt.Settle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.s.Done():
			return context.Cause(m.s.Context())
		case <-timer.C:
			return nil
		case <-m.todo.queue.C():
			if !m.todo.gather(m.root) {
				return nil
			}
		}
	}
}
