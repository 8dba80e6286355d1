package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

const (
	// grace is how long a change of a member waits for a change of the list:
	// both come when a member leaves, and then there is nothing to read.
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
type reader struct {
	g *Group
	s *session.Session

	list    *session.Watch // of the children, or of the group while it is missing
	missing bool
	known   bool // the group has been read
	nodes   map[string]*child
	over    []string // names beyond the limit
	dirty   map[string]bool
	fan     *fanin
	last    int64 // largest zxid seen

	// What members returned last; changed says that it is out of date.
	set      members
	rejected []view.Rejected
	changed  bool
}

// child is one child of the group.
type child struct {
	member *view.Member // nil: it is none
	reason string       // why it is none; empty: it is not meant to be one
	again  time.Time    // when to read it again without an event; zero: never
}

func newReader(g *Group, s *session.Session) *reader {
	return &reader{g: g, s: s, nodes: map[string]*child{}, dirty: map[string]bool{}, fan: newFanin(), changed: true}
}

func (r *reader) close() {
	r.list.Stop()
	r.fan.close()
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
		if r.known {
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
		case name := <-r.fan.out:
			if err := r.settle(ctx, name); err != nil {
				return err
			}
		case <-r.g.wake:
		case <-timer.C:
			r.due(time.Now())
		}
	}
}

// catchUp reads until nothing is known to be out of date; members that come
// one after the other are passed on together.
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

// settle collects changes of members until the list changes too, or a moment
// has passed.
func (r *reader) settle(ctx context.Context, name string) error {
	r.dirty[name] = true
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.s.Done():
			return context.Cause(r.s.Context())
		case name := <-r.fan.out:
			r.dirty[name] = true
		case <-r.listFired():
			r.list = nil
			return nil
		case <-timer.C:
			return nil
		}
	}
}

// pause is the time to the next thing to do without an event.
func (r *reader) pause(next time.Time) time.Duration {
	for _, c := range r.nodes {
		if !c.again.IsZero() {
			next = earliest(next, c.again)
		}
	}
	switch {
	case r.list == nil:
		return retryList
	case next.IsZero():
		return time.Hour
	}
	return max(time.Until(next), 0)
}

// due marks children whose time to be read again has come.
func (r *reader) due(now time.Time) {
	for name, c := range r.nodes {
		if !c.again.IsZero() && !c.again.After(now) {
			r.dirty[name] = true
		}
	}
}

// relist reads the names of the children. A group that does not exist is
// empty and waited for. What cannot be read is tried again later; the error is
// shown meanwhile.
func (r *reader) relist(ctx context.Context) error {
	names, stat, w, err := r.s.ChildrenW(ctx, r.g.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		return r.awaitGroup(ctx)
	}
	if err != nil {
		return r.failed(ctx, fmt.Errorf("list %s: %w", r.g.cfg.Path, err))
	}
	r.list, r.known = w, true
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
		return r.relist(ctx) // it has come meanwhile
	}
	r.list, r.known, r.missing, r.changed = w, true, true, true
	clear(r.nodes)
	clear(r.dirty)
	r.over = nil
	return nil
}

// failed decides whether an error ends this run or is shown and waited out.
func (r *reader) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil || r.s.Context().Err() != nil {
		return err
	}
	r.g.log.Warn("group not readable", "group", r.g.cfg.Name, "path", r.g.cfg.Path, "err", err)
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.g.status.Error = err.Error()
	return nil
}

// compare brings the copy in line with a list of names: those that are new
// are to be read.
func (r *reader) compare(names []string) {
	r.missing, r.changed, r.over = false, true, nil
	if n := r.g.cfg.MaxMembers; len(names) > n {
		slices.Sort(names) // The same ones are left out each time.
		names, r.over = names[:n], names[n:]
	}
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
		if _, ok := r.nodes[name]; !ok {
			r.dirty[name] = true
		}
	}
	gone := func(name string) bool { return !present[name] }
	maps.DeleteFunc(r.nodes, func(name string, _ *child) bool { return gone(name) })
	maps.DeleteFunc(r.dirty, func(name string, _ bool) bool { return gone(name) })
}

// saw notes the largest zxid.
func (r *reader) saw(st session.Stat) { r.last = max(r.last, st.Czxid, st.Mzxid, st.Pzxid) }

// members returns the members by key, and the children that are none.
func (r *reader) members() (members, []view.Rejected) {
	if !r.changed {
		return r.set, r.rejected
	}
	list := make([]*view.Member, 0, len(r.nodes))
	var rejected []view.Rejected
	for name, c := range r.nodes {
		switch {
		case c.member != nil:
			list = append(list, c.member)
		case c.reason != "":
			rejected = append(rejected, view.Rejected{Node: clipName(name), Reason: c.reason})
		}
	}
	for _, name := range r.over {
		rejected = append(rejected, view.Rejected{Node: clipName(name), Reason: fmt.Sprintf("more than %d children", r.g.cfg.MaxMembers)})
	}
	set, duplicates := dedupe(list)
	rejected = append(rejected, duplicates...)
	slices.SortFunc(rejected, func(a, b view.Rejected) int { return strings.Compare(a.Node, b.Node) })
	r.set, r.rejected, r.changed = set, rejected, false
	return set, rejected
}

// clipName bounds the name of a child that is shown.
func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
