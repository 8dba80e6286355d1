package registry

import (
	"errors"
	"fmt"
	"time"
)

// Groups that are too large. The data of all members of a group is bounded, so that
// one group cannot exhaust the agent's memory. The reader reads members up to the
// bound and leaves out the others. Meanwhile it passes on nothing, because an
// incomplete group is wrong.

// ErrTooLarge is matched by the error of a group with more data than GroupConfig.MaxBytes.
var ErrTooLarge = errors.New("the group is too large")

// room returns how many bytes may still be read; 0: no bound, negative: no room.
func (r *reader) room() int64 {
	switch limit := r.g.cfg.MaxBytes; {
	case limit < 0:
		return 0
	case r.bytes >= limit:
		return -1
	default:
		return limit - r.bytes
	}
}

// leaveOut marks a child that is not read because there is no room, for a later
// try. It reports whether it left the child out. It never leaves out a child that
// was read before.
func (r *reader) leaveOut(name string) bool {
	old := r.nodes[name]
	if old != nil && !old.unread {
		return false
	}
	if old == nil {
		r.nodes[name] = &child{round: r.round, unread: true}
		r.unread++
	}
	r.retry[name] = time.Now().Add(rereadAfter)
	return true
}

// forget takes a child out of the sums.
func (r *reader) forget(c *child) {
	r.bytes -= int64(c.size)
	if c.unread {
		r.unread--
	}
}

// tooLarge reports whether the group is too large to pass on, and closes the problem
// of a group that can be read and fits.
func (r *reader) tooLarge() bool {
	limit := r.g.cfg.MaxBytes
	large := limit > 0 && (r.unread > 0 || r.bytes > limit)
	if !large && !r.large && r.g.reported == "" {
		return false
	}
	var err error
	if large {
		const mib = 1 << 20
		err = fmt.Errorf("%w: %.1f MiB in %d of its %d children, max_bytes allows %.1f MiB; the last good members stay in use",
			ErrTooLarge, float64(r.bytes)/mib, len(r.nodes)-r.unread, len(r.nodes), float64(limit)/mib)
		r.g.mu.Lock()
		r.g.status.Error = err.Error()
		r.g.mu.Unlock()
	}
	if large != r.large {
		if large {
			r.g.log.Error("group is not used", "group", r.g.cfg.Name, "path", r.g.cfg.Path, "err", err)
		}
		if large && r.g.failed != nil {
			r.g.failed()
		}
	}
	r.large = large
	if r.g.unlisted == "" {
		r.g.problem(err)
	}
	return large
}

// problem calls Problem when a group becomes unusable or usable, or another kind of
// error is the reason.
func (g *Group) problem(err error) {
	kind := ""
	switch {
	case errors.Is(err, ErrTooLarge):
		kind = ErrTooLarge.Error() // the sizes in the text change with every member
	case err != nil:
		kind = err.Error()
	}
	if kind == g.reported {
		return
	}
	g.reported = kind
	if g.cfg.Problem != nil {
		g.cfg.Problem(err)
	}
}
