package config

import (
	"sync/atomic"
	"time"
)

// Status tells how a config stands: what is in use, what is waited for.
type Status struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Layout string `json:"layout"` // as found: flat, versioned or plain; empty until known
	// Following says that a session is being used.
	Following bool `json:"following"`
	// Waiting says in words what is waited for; empty when the newest state of
	// the tree is in use.
	Waiting string `json:"waiting,omitempty"`
	// Since is when Waiting, or the tree in use, became what it is.
	Since time.Time `json:"since"`
	// Generation, Digest and Keys are those of the tree in use; 0 and empty
	// when none was passed on yet.
	Generation int64  `json:"generation"`
	Digest     string `json:"digest,omitempty"`
	Keys       int    `json:"keys"`
	// Torn counts readings that were thrown away, for the tree changed
	// meanwhile.
	Torn uint64 `json:"torn"`
	// Err is what is wrong; nil when nothing is. The last good tree stays.
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

// wait notes what is waited for. The time of a wait that goes on stays.
func (b *board) wait(what string) {
	b.edit(func(s *Status) {
		if s.Waiting != what {
			s.Waiting, s.Since = what, time.Now()
		}
	})
}
