package mirror

import (
	"sync"

	"github.com/zkagent/zkagent/session"
)

// mark names what is to be read again: the data of a znode, or its children.
type mark struct {
	rel  string
	kids bool
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

// take returns what was marked since the last call. Every event that the session
// received before the call is among it.
func (k *marks) take(root string) map[mark]struct{} {
	k.mu.Lock()
	all := k.own
	k.own = map[mark]struct{}{}
	k.mu.Unlock()
	for _, rung := range k.queue.Take() {
		all[mark{relative(root, rung.Watch.Path()), rung.Children}] = struct{}{}
	}
	return all
}

// Fired reports whether the watch has fired. What the session received before
// the reply of a read has closed its watch when that read returns.
func Fired(w *session.Watch) bool { return w.Fired() }
