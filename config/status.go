package config

import (
	"sync/atomic"
	"time"
)

// Status is the state of a config: the tree in use, and what the watcher waits for.
type Status struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Layout string `json:"layout"` // as found: flat, versioned or plain; empty until known
	// Following says that a session is being used.
	Following bool `json:"following"`
	// Waiting says in words what the watcher waits for. It is empty when the latest
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

// board keeps the status for readers outside of the loop.
type board struct{ p atomic.Pointer[Status] }

func (b *board) load() Status {
	if s := b.p.Load(); s != nil {
		return *s
	}
	return Status{}
}

// edit changes the status. Only the loop calls it.
func (b *board) edit(fn func(*Status)) {
	s := b.load()
	fn(&s)
	b.p.Store(&s)
}

// wait notes what the watcher waits for. It keeps the start time of a wait that
// continues.
func (b *board) wait(what string) {
	b.edit(func(s *Status) {
		if s.Waiting != what {
			s.Waiting, s.Since = what, time.Now()
		}
	})
}
