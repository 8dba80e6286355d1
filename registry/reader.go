package registry

import (
	"context"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

const (
	// grace is how long a change of a member waits for a change of the list. When a
	// member leaves, both change, and there is nothing to read.
	grace = 10 * time.Millisecond
	// rereadAfter is when a child that could not be read is tried again.
	rereadAfter = time.Minute
	retryList   = 10 * time.Second
	maxRounds   = 10 // reads in a row without passing anything on
)

// reader keeps a copy of the children of one group znode in one session: one
// children watch on the group, one data watch per member. A join costs one
// list and one read, a leave one list, a change one read. Only the goroutine
// that runs loop touches it.
//
// Its work for a change is proportional to the change, except for walks along lists
// of pointers. Groups have up to 10,000 members.
type reader struct {
	g *Group
	s *session.Session

	list    *session.Watch // of the children, or of the group while it is missing
	pzxid   int64          // of the list; 0: the group is missing
	missing bool
	known   bool // the group has been read
	again   recheck
	nodes   map[string]*child
	reasons map[string]string    // why children are no members
	retry   map[string]time.Time // when to read children again without an event
	over    []string             // names beyond the limit
	dirty   map[string]bool
	bell    *session.WatchQueue // rings for the watches of the members
	bytes   int64               // of the data of all members
	unread  int                 // members that were left out
	large   bool                // the group is too large
	round   int                 // lists read
	last    int64               // largest zxid seen

	// The last result of members, and what has changed since: names, each with its
	// member in set.
	set      members
	rejected []view.Rejected
	doubles  []view.Rejected
	touched  map[string]*view.Member
	changed  bool
}

// child is one child of the group.
type child struct {
	member *view.Member // nil: not a member
	size   int          // bytes of its data
	unread bool         // left out because of GroupConfig.MaxBytes
	watch  *session.Watch
	mzxid  int64
	round  int // the newest list that contains it
}

func newReader(g *Group, s *session.Session) *reader {
	r := &reader{
		g: g, s: s, nodes: map[string]*child{}, reasons: map[string]string{}, retry: map[string]time.Time{}, dirty: map[string]bool{},
		touched: map[string]*view.Member{}, bell: session.NewWatchQueue(), changed: true,
	}
	r.again.plan()
	return r
}

func (r *reader) close() {
	r.list.Stop()
	for _, c := range r.nodes {
		c.watch.Stop()
	}
}

// loop reads, calls step after each change and when step asked for it, and
// returns when ctx or the session has ended.
func (r *reader) loop(ctx context.Context, step func(now time.Time) time.Time) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		var next time.Time
		if r.known && !r.tooLarge() {
			next = step(time.Now())
		}
		timer.Reset(r.pause(next))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.s.Done():
			return context.Cause(r.s.Context())
		case <-r.listFired():
			r.list = nil
		case <-r.bell.C():
			if err := r.settle(ctx); err != nil {
				return err
			}
		case <-r.g.wake:
		case <-timer.C:
			r.due(time.Now())
			r.look(ctx)
		}
	}
}

// catchUp reads until no known change is left. It passes on members together that
// come shortly after each other.
func (r *reader) catchUp(ctx context.Context) error {
	for range maxRounds {
		if r.list == nil {
			if err := r.relist(ctx); err != nil {
				return err
			}
		}
		if err := r.reread(ctx); err != nil {
			return err
		}
		select {
		case <-r.listFired():
			r.list = nil
			continue
		default:
		}
		return nil
	}
	return nil
}

func (r *reader) listFired() <-chan struct{} {
	if r.list == nil {
		return nil
	}
	return r.list.C()
}

// settle collects changes of members until the list changes too, or grace has
// passed.
func (r *reader) settle(ctx context.Context) error {
	if !r.rung() {
		return nil
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.s.Done():
			return context.Cause(r.s.Context())
		case <-r.bell.C():
			r.rung()
		case <-r.listFired():
			r.list = nil
			return nil
		case <-timer.C:
			return nil
		}
	}
}

// rung marks the children whose watches fired for reading, and reports whether
// there are any. It does not mark a deleted child, because the list changes too. If
// the list event gets lost, the child is read again after rereadAfter.
func (r *reader) rung() bool {
	found := false
	for _, rung := range r.bell.Take() {
		w := rung.Watch
		path := w.Path()
		name := path[strings.LastIndexByte(path, '/')+1:]
		switch c := r.nodes[name]; {
		case c == nil || c.watch != w:
		case w.Gone():
			r.retry[name] = time.Now().Add(rereadAfter)
		default:
			r.dirty[name], found = true, true
		}
	}
	return found
}

// pause returns the time until the next work without an event.
func (r *reader) pause(next time.Time) time.Duration {
	for _, again := range r.retry {
		next = earliest(next, again)
	}
	if r.list == nil {
		return retryList
	}
	return max(time.Until(earliest(next, r.again.at)), 0)
}

// due marks children whose time to be read again has come.
func (r *reader) due(now time.Time) {
	for name, again := range r.retry {
		if !again.After(now) {
			r.dirty[name] = true
		}
	}
}

// saw notes the largest zxid.
func (r *reader) saw(st session.Stat) { r.last = max(r.last, st.Czxid, st.Mzxid, st.Pzxid) }
