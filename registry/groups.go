package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// maxGroups bounds the groups of one set. While there are more, the last good state stays
// in use.
const maxGroups = 5000

// Groups follows every child of one znode as a group. A group whose znode is gone
// stays until its guard releases the members.
type Groups struct {
	cfg  GroupConfig
	log  *slog.Logger
	wake chan struct{} // size 1: Run should look at its groups

	sent *view.Groups // only Run touches it

	mu     sync.Mutex        // guards the fields below
	groups map[string]*Group // only Run changes it
	err    string
}

// NewGroups returns the follower of a set of groups: each child of the znode cfg.Path
// is a group, to which the other fields apply. It does no I/O and starts nothing.
// [Groups.Run] reports an invalid cfg.
func NewGroups(cfg GroupConfig) *Groups {
	g := &Groups{cfg: cfg, log: logger(cfg.Logger), wake: make(chan struct{}, 1), groups: map[string]*Group{}}
	for _, before := range cfg.Before {
		g.add(before.Name)
	}
	g.cfg.Before = nil // a group that comes later is another one
	return g
}

// Accept makes the guard of one group, or of all groups if name is empty, accept
// the current members. It reports whether such a group exists.
func (g *Groups) Accept(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := false
	for n, group := range g.groups {
		if name == "" || n == name {
			group.Accept()
			found = true
		}
	}
	return found
}

// GroupsStatus is the state of a set of groups.
type GroupsStatus struct {
	Name   string        `json:"name"`
	Path   string        `json:"path"`
	Groups []GroupStatus `json:"groups"`
	Error  string        `json:"error,omitempty"`
}

// Status returns the current state.
func (g *Groups) Status() GroupsStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := GroupsStatus{Name: g.cfg.Name, Path: g.cfg.Path, Error: g.err, Groups: []GroupStatus{}}
	for _, name := range slices.Sorted(maps.Keys(g.groups)) {
		s.Groups = append(s.Groups, g.groups[name].Status())
	}
	return s
}

// Run calls up with the set until ctx or the session ends: first once every group
// has been read, then after each change. It returns like [Group.Run].
func (g *Groups) Run(ctx context.Context, s *session.Session, up func(*view.Groups)) error {
	if err := g.cfg.Validate(); err != nil {
		return fmt.Errorf("groups %s: %w", g.cfg.Name, err)
	}
	s = session.Usable(s, g.cfg.Path, up != nil)
	f := &groupsRun{g: g, listed: map[string]bool{}, rosters: map[string]*roster{}, next: map[string]time.Time{}}
	if g.sent != nil {
		f.refused = g.sent.RawNames
	}
	for name, group := range g.groups { // Only Run changes the map.
		f.rosters[name] = group.newRoster() // of a previous session: its guard may hold members
	}
	defer func() {
		for _, group := range g.groups {
			group.prober.end()
		}
	}()
	opt := NewGroup(g.cfg).cfg.copyOptions()
	members := opt.MaxChildren
	opt.Depth, opt.Parts = 2, true
	opt.MaxChildren = func(rel string) int {
		if rel == "" {
			return maxGroups
		}
		return members(rel)
	}
	err := mirror.Follow(ctx, s, g.cfg.Path, opt, g.wake, func(snap *mirror.Snapshot, changed []string) (time.Time, error) {
		next := f.take(ctx, snap, changed)
		if set := f.set(snap); set != nil && up != nil {
			up(set)
		}
		return next, nil
	})
	if err != nil && ctx.Err() == nil && s.Context().Err() == nil {
		return fmt.Errorf("groups %s: %w", g.cfg.Name, err)
	}
	return err
}

type groupsRun struct {
	g       *Groups
	known   bool // the groups have been listed
	listed  map[string]bool
	refused []string // children that are not groups, because they are no names
	rosters map[string]*roster
	next    map[string]time.Time        // when a group is due though nothing is read
	failing map[string]map[string]error // what could not be read, by group and member
	changed bool                        // since set was called
}

// take takes in what changed. It returns when to look again (zero: never).
func (f *groupsRun) take(ctx context.Context, snap *mirror.Snapshot, changed []string) time.Time {
	failing := splitErrors(snap.Errors())
	top, _ := snap.Get("")
	err := failing[""][""]
	if n := len(top.Over); n > 0 {
		err = fmt.Errorf("%s has %d groups, at most %d are possible: the last good state stays in use", f.g.cfg.Path, len(top.Children)+n, maxGroups)
		for _, r := range f.rosters {
			r.stale = true // what changes now is not looked at
		}
	}
	f.g.setError(err)
	if len(top.Over) > 0 || err != nil && !f.known {
		return time.Time{}
	}
	f.known = true
	touched := map[string][]string{} // the members that changed, by group
	for _, rel := range changed {
		switch group, member, ok := strings.Cut(rel, "/"); {
		case ok:
			touched[group] = append(touched[group], member)
		case touched[group] == nil:
			touched[group] = []string{}
		}
	}
	f.list(top.Children)
	was := f.failing
	f.failing = failing
	var next time.Time
	for name, r := range f.rosters {
		group := f.g.groups[name]
		due := f.next[name]
		if r.stale || group.woken.Swap(false) || touched[name] != nil || failing[name] != nil || was[name] != nil || !due.IsZero() && !due.After(time.Now()) {
			var different bool
			f.next[name], different = group.read(ctx, r, r.take(snap, name, touched[name], failing[name]))
			f.changed = f.changed || different
		}
		// A group whose znode is gone stays while it has members (held).
		if !f.listed[name] && r.missing && (group.sent == nil || len(group.sent.Members) == 0) {
			delete(f.rosters, name)
			delete(f.next, name)
			f.changed = true
			f.g.forget(name)
			continue
		}
		next = earliest(next, f.next[name])
	}
	return next
}

// splitErrors sorts errors by the group and the member that they are about. Those of
// the root have no name, those of a group no member.
func splitErrors(errs map[string]error) map[string]map[string]error {
	split := map[string]map[string]error{}
	for rel, err := range errs {
		group, member, _ := strings.Cut(rel, "/")
		if split[group] == nil {
			split[group] = map[string]error{}
		}
		split[group][member] = err
	}
	return split
}

// list takes in the names of the groups. A group whose name could mean something in a
// file or a command is left out.
func (f *groupsRun) list(children []string) {
	clear(f.listed)
	refused := []string{}
	for _, name := range children {
		if !view.IsName(name) {
			refused = append(refused, clipName(name))
			continue
		}
		f.listed[name] = true
		if f.rosters[name] == nil {
			f.rosters[name] = f.g.add(name).newRoster()
		}
	}
	slices.Sort(refused)
	f.changed = f.changed || !slices.Equal(refused, f.refused)
	f.refused = refused
}

// set returns the set if it differs from the last one, else nil.
func (f *groupsRun) set(snap *mirror.Snapshot) *view.Groups {
	if !f.known || !f.changed && f.g.sent != nil {
		return nil
	}
	f.changed = false
	set := &view.Groups{Name: f.g.cfg.Name, Path: f.g.cfg.Path, Last: snap.Last, Groups: []*view.Group{}, RawNames: f.refused}
	for _, name := range slices.Sorted(maps.Keys(f.rosters)) {
		if sent := f.g.groups[name].sent; sent != nil { // A group that was never readable does not hide the others.
			set.Groups = append(set.Groups, sent)
		}
	}
	if f.g.sent != nil && f.g.sent.Equal(set) {
		return nil
	}
	f.g.sent = set
	return set
}

func (g *Groups) add(name string) *Group {
	cfg := g.cfg
	cfg.Name, cfg.Path = name, session.JoinPath(g.cfg.Path, name)
	group := NewGroup(cfg)
	group.wake = g.wake
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[name] = group
	return group
}

func (g *Groups) forget(name string) {
	g.groups[name].prober.end()
	g.mu.Lock()
	delete(g.groups, name)
	g.mu.Unlock()
	g.cfg.Metrics.forget(name)
	if g.cfg.Problem != nil {
		g.cfg.Problem(name, nil)
	}
}

// setError notes why the groups cannot be listed; nil: they can.
func (g *Groups) setError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.mu.Lock()
	changed := g.err != text
	g.err = text
	g.mu.Unlock()
	if !changed {
		return
	}
	if err != nil {
		g.log.Warn("cannot read the groups", "groups", g.cfg.Name, "path", g.cfg.Path, "err", err)
	}
	if g.cfg.Problem != nil {
		g.cfg.Problem("", err)
	}
}

// ErrTooLarge is matched by the error of a group with more data than GroupConfig.MaxBytes.
var ErrTooLarge = errors.New("the group is too large")

const (
	// grace is how long a change of a member waits for a change of the list. When a
	// member leaves, both change, and there is nothing to read.
	grace = 10 * time.Millisecond
	// recheckFew is how many members are looked at every 30 to 60 seconds without an event.
	recheckFew = 2
)

// copyOptions are the options of the mirror that the group is read from.
func (c GroupConfig) copyOptions() mirror.Options {
	return mirror.Options{
		Depth: 1, MaxBytes: max(c.MaxBytes, 0), Settle: grace, Recheck: recheckFew,
		MaxChildren: func(string) int { return c.MaxMembers },
	}
}

// roster is the members of one group as they are registered, read in one session.
//
// Its work for a change is proportional to the change, except for walks along lists
// of pointers. Groups have up to 10,000 members.
type roster struct {
	cfg *GroupConfig
	log *slog.Logger
	dec decoder

	missing bool // the group znode does not exist
	stale   bool // not read yet, or too large: what is registered is not known
	last    int64

	nodes      map[string]*view.Member // the members by the names of their znodes
	reasons    map[string]string       // why other children are no members
	unreadable map[string]string       // likewise, of those that cannot be read
	over       []string                // names beyond the limit

	// The last result of members, and what has changed since: names, each with its
	// member in set.
	set      members
	rejected []view.Rejected
	doubles  []view.Rejected
	touched  map[string]*view.Member
	changed  bool
}

func (g *Group) newRoster() *roster {
	return &roster{
		cfg: &g.cfg, log: g.log, dec: g.dec, stale: true, changed: true, nodes: map[string]*view.Member{},
		reasons: map[string]string{}, touched: map[string]*view.Member{},
	}
}

// take takes in the children of the znode at rel that changed, and the errors of those
// that cannot be read. It returns why the group cannot be used: it cannot be listed, or
// is too large.
func (r *roster) take(snap *mirror.Snapshot, rel string, names []string, errs map[string]error) error {
	node, there := snap.Get(rel)
	bytes, large := snap.Size(rel)
	r.last = snap.Last
	if large {
		const mib = 1 << 20
		r.stale = true
		return fmt.Errorf("%w: its members have %.1f MiB of data, max_bytes allows %.1f MiB; the last good members stay in use",
			ErrTooLarge, float64(bytes)/mib, float64(r.cfg.MaxBytes)/mib)
	}
	err := errs[""]
	if err != nil {
		err = fmt.Errorf("read the group %s: %w", r.cfg.Path, err)
	}
	if r.stale {
		if err != nil {
			return err
		}
		r.stale = false
		names = slices.Concat(slices.Collect(maps.Keys(r.nodes)), slices.Collect(maps.Keys(r.reasons)), node.Children)
	}
	for _, name := range names {
		r.takeChild(snap, name, path.Join(rel, name))
	}
	if r.missing != !there || !slices.Equal(r.over, node.Over) {
		r.missing, r.over, r.changed = !there, node.Over, true
	}
	r.takeErrors(errs)
	return err
}

func (r *roster) takeChild(snap *mirror.Snapshot, name, rel string) {
	was := r.nodes[name]
	if _, noted := r.touched[name]; !noted {
		r.touched[name] = was
	}
	r.changed = true
	delete(r.nodes, name)
	node, there := snap.Get(rel)
	if !there {
		delete(r.reasons, name)
		return
	}
	switch m, err := r.judge(name, node); {
	case err == nil:
		r.nodes[name] = m
		delete(r.reasons, name)
	case errors.Is(err, ErrIgnore):
		delete(r.reasons, name)
	default:
		reason := clip(err.Error())
		r.warn(name, reason, r.reasons[name])
		r.reasons[name] = reason
	}
}

// takeErrors takes in which children cannot be read. One that could be read before stays
// a member.
func (r *roster) takeErrors(errs map[string]error) {
	if len(errs) == 0 && len(r.unreadable) == 0 {
		return
	}
	was := r.unreadable
	r.unreadable, r.changed = map[string]string{}, true
	for name, err := range errs {
		ignored := r.dec(new(view.Member), name, nil)
		if name != "" && !errors.Is(ignored, ErrIgnore) {
			r.unreadable[name] = clip("not readable: " + err.Error())
			r.warn(name, r.unreadable[name], was[name])
		}
	}
}

// warn logs why a child is not a member, once per reason.
func (r *roster) warn(name, reason, former string) {
	if reason != former {
		r.log.Warn("child of the group is not a member", "group", r.cfg.Name, "path", r.cfg.Path, "member", clipName(name), "reason", reason)
	}
}

func (r *roster) judge(name string, node mirror.Node) (*view.Member, error) {
	m, err := decodeWith(r.dec, name, node.Data)
	if err != nil {
		return nil, err
	}
	if host, ok := strings.CutSuffix(m.Node, "-"+path.Base(r.cfg.Path)); ok && host != "" {
		m.Node = host // the default member id of a registrar
	}
	m.Czxid, m.Mzxid, m.Created = node.Stat.Czxid, node.Stat.Mzxid, time.UnixMilli(node.Stat.Ctime)
	if err := r.cfg.admits(&m); err != nil {
		return nil, err
	}
	if r.cfg.took != nil {
		r.cfg.took(name, node.Data)
	}
	return &m, nil
}

func (r *roster) members() (members, []view.Rejected) {
	if !r.changed {
		return r.set, r.rejected
	}
	if !r.merge() {
		r.set, r.doubles = dedupe(slices.Collect(maps.Values(r.nodes)))
	}
	clear(r.touched)
	r.changed = false
	r.rejected = slices.Clone(r.doubles)
	for _, reasons := range []map[string]string{r.reasons, r.unreadable} {
		for name, reason := range reasons {
			r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: reason})
		}
	}
	for _, name := range r.over {
		r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: fmt.Sprintf("more than %d children", r.cfg.MaxMembers)})
	}
	slices.SortFunc(r.rejected, func(a, b view.Rejected) int { return strings.Compare(a.Znode, b.Znode) })
	return r.set, r.rejected
}

// merge applies the touched children to set. It returns false where two children
// are the same member, because then the one that was left out may have to replace
// the other.
func (r *roster) merge() bool {
	if len(r.doubles) > 0 || len(r.touched) > len(r.set)/2 {
		return false
	}
	var gone, came members
	for name, was := range r.touched {
		if was != nil {
			gone = append(gone, was)
		}
		if m := r.nodes[name]; m != nil {
			came = append(came, m)
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

func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
