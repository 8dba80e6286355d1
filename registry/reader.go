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
//
// What it does for a change is proportional to the change, but for walks along
// lists of pointers: groups have up to 10,000 members.
type reader struct {
	g *Group
	s *session.Session

	list    *session.Watch // of the children, or of the group while it is missing
	missing bool
	known   bool // the group has been read
	nodes   map[string]*child
	reasons map[string]string    // why children are no members
	retry   map[string]time.Time // when to read children again without an event
	over    []string             // names beyond the limit
	dirty   map[string]bool
	bell    *session.Bell // rings for the watches of the members
	round   int           // lists read
	last    int64         // largest zxid seen

	// What members returned last, and what has changed since: names, with the
	// member that set has of them.
	set      members
	rejected []view.Rejected
	doubles  []view.Rejected
	touched  map[string]*view.Member
	changed  bool
}

// child is one child of the group.
type child struct {
	member *view.Member // nil: it is none
	watch  *session.Watch
	round  int // of the newest list that has it
}

func newReader(g *Group, s *session.Session) *reader {
	return &reader{
		g: g, s: s, nodes: map[string]*child{}, reasons: map[string]string{}, retry: map[string]time.Time{}, dirty: map[string]bool{},
		touched: map[string]*view.Member{}, bell: session.NewBell(), changed: true,
	}
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
		case <-r.bell.C():
			if err := r.settle(ctx); err != nil {
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

// rung marks the children whose watches fired as to be read, and reports
// whether there are any. One that was deleted is not read: the list tells, and
// should it not, the child is looked at after a while.
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

// pause is the time to the next thing to do without an event.
func (r *reader) pause(next time.Time) time.Duration {
	for _, again := range r.retry {
		next = earliest(next, again)
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
	for name, again := range r.retry {
		if !again.After(now) {
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
	for name := range r.nodes {
		r.drop(name)
	}
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

// saw notes the largest zxid.
func (r *reader) saw(st session.Stat) { r.last = max(r.last, st.Czxid, st.Mzxid, st.Pzxid) }

// drop forgets a child.
func (r *reader) drop(name string) {
	if c := r.nodes[name]; c != nil {
		c.watch.Stop()
		r.touch(name, c.member)
		delete(r.nodes, name)
	}
	delete(r.reasons, name)
	delete(r.retry, name)
	delete(r.dirty, name)
}

// touch notes that a child is not what it was when members was called.
func (r *reader) touch(name string, was *view.Member) {
	if _, ok := r.touched[name]; !ok {
		r.touched[name] = was
	}
	r.changed = true
}

// members returns the members, and the children that are none.
func (r *reader) members() (members, []view.Rejected) {
	if !r.changed {
		return r.set, r.rejected
	}
	if !r.merge() {
		list := make(members, 0, len(r.nodes))
		for _, c := range r.nodes {
			if c.member != nil {
				list = append(list, c.member)
			}
		}
		r.set, r.doubles = dedupe(list)
	}
	clear(r.touched)
	r.changed = false
	r.rejected = slices.Clone(r.doubles)
	for name, reason := range r.reasons {
		r.rejected = append(r.rejected, view.Rejected{Node: clipName(name), Reason: reason})
	}
	for _, name := range r.over {
		r.rejected = append(r.rejected, view.Rejected{Node: clipName(name), Reason: fmt.Sprintf("more than %d children", r.g.cfg.MaxMembers)})
	}
	slices.SortFunc(r.rejected, func(a, b view.Rejected) int { return strings.Compare(a.Node, b.Node) })
	return r.set, r.rejected
}

// merge brings set up to date by what was touched. It reports whether it
// could: not where two children are the same member, for then the one that is
// left out may have to take the place of the other.
func (r *reader) merge() bool {
	if len(r.doubles) > 0 || len(r.touched) > len(r.set)/2 {
		return false
	}
	var gone, came members
	for name, was := range r.touched {
		if was != nil {
			gone = append(gone, was)
		}
		if c := r.nodes[name]; c != nil && c.member != nil {
			came = append(came, c.member)
		}
	}
	came, doubles := dedupe(came)
	if len(doubles) > 0 {
		return false
	}
	set := r.set.without(gone)
	if slices.ContainsFunc(came, set.has) {
		return false
	}
	r.set = set.with(came)
	return true
}

// clipName bounds the name of a child that is shown.
func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
