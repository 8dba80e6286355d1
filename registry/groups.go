package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// GroupsConfig describes a znode each of whose children is a group. The fields that
// it shares with [GroupConfig] apply to each group.
type GroupsConfig struct {
	Name string // label of the groups block
	Path string // parent znode

	Format     string
	OnEmpty    string
	Allow      []netip.Prefix
	Guard      GuardConfig
	NoDamping  bool
	MaxMembers int
	MaxBytes   int64 // of each group

	// Problem is like that of a GroupConfig, with the name of the group, or with "" if
	// the groups cannot be listed. Several goroutines may call it.
	Problem func(group string, err error) `json:"-"`

	Logger  *slog.Logger `json:"-"` // nil: discard
	Metrics *Metrics     `json:"-"` // nil: none
}

// Validate returns what is wrong with the configuration.
func (c GroupsConfig) Validate() error { return c.group("x").Validate() }

func (c GroupsConfig) group(name string) GroupConfig {
	var problem func(error)
	if c.Problem != nil {
		problem = func(err error) { c.Problem(name, err) }
	}
	return GroupConfig{
		Problem: problem,
		Name:    name, Path: session.JoinPath(c.Path, name), Format: c.Format, OnEmpty: c.OnEmpty, Allow: c.Allow, Guard: c.Guard,
		NoDamping: c.NoDamping, MaxMembers: c.MaxMembers, MaxBytes: c.MaxBytes, Logger: c.Logger, Metrics: c.Metrics,
	}
}

// Groups follows every child of one znode as a group. A group whose znode is gone
// stays until its guard releases the members.
type Groups struct {
	cfg GroupsConfig
	log *slog.Logger

	sent *view.Groups // only Run touches it

	mu     sync.Mutex // guards what follows
	groups map[string]*Group
	err    string
}

// NewGroups returns the follower of a set of groups. It does no I/O and starts
// nothing. Run reports an invalid cfg.
func NewGroups(cfg GroupsConfig) *Groups {
	g := &Groups{cfg: cfg, log: cfg.Logger, groups: map[string]*Group{}}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
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
	runCtx, cancel := context.WithCancel(ctx)
	f := &groupsRun{g: g, s: s, up: up, updates: make(chan *view.Group), failing: make(chan string), unreadable: map[string]bool{}, ended: make(chan string), latest: map[string]*view.Group{}, running: map[string]context.CancelFunc{}}
	err := f.loop(runCtx)
	cancel()
	f.drain()
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the caller ended it
	case s.Context().Err() != nil:
		return context.Cause(s.Context())
	}
	return fmt.Errorf("groups %s: %w", g.cfg.Name, err)
}

// groupsRun is one Run of a set of groups. It has one goroutine per group; the loop
// owns them and waits for them.
type groupsRun struct {
	g  *Groups
	s  *session.Session
	up func(*view.Groups)

	list    *session.Watch
	listed  map[string]bool // nil: not yet listed
	last    int64
	pzxid   int64 // of the list; 0: there is no such znode
	again   recheck
	updates chan *view.Group
	ended   chan string // names of groups whose goroutine has ended
	latest  map[string]*view.Group
	failing chan string
	// unreadable has the groups whose first read failed.
	unreadable map[string]bool
	running    map[string]context.CancelFunc
}

func (f *groupsRun) loop(ctx context.Context) error {
	defer func() { f.list.Stop() }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	f.again.plan()
	for {
		if f.list == nil {
			if err := f.relist(ctx); err != nil {
				return err
			}
		}
		f.emit()
		timer.Reset(max(min(retryList, time.Until(f.again.at)), 0))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.s.Done():
			return context.Cause(f.s.Context())
		case u := <-f.updates:
			f.latest[u.Name] = u
			delete(f.unreadable, u.Name)
		case name := <-f.failing:
			f.unreadable[name] = true
		case name := <-f.ended:
			f.hasEnded(ctx, name)
		case <-f.fired():
			f.list = nil
		case <-timer.C:
			if f.list != nil && !time.Now().Before(f.again.at) {
				f.again.plan()
				if !unchanged(ctx, f.s, f.g.cfg.Path, f.pzxid) {
					f.list.Stop()
					f.list = nil
				}
			}
		}
	}
}

func (f *groupsRun) fired() <-chan struct{} {
	if f.list == nil {
		return nil
	}
	return f.list.C()
}

// relist reads the names of the groups and starts to follow new ones.
func (f *groupsRun) relist(ctx context.Context) error {
	names, stat, w, err := f.s.ChildrenW(ctx, f.g.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		var ok bool
		if stat, ok, w, err = f.s.ExistsW(ctx, f.g.cfg.Path); ok && err == nil {
			w.Stop()
			return f.relist(ctx) // it has come meanwhile
		}
	}
	if err != nil {
		if ctx.Err() != nil || f.s.Context().Err() != nil {
			return err
		}
		f.g.log.Warn("cannot read the groups", "groups", f.g.cfg.Name, "path", f.g.cfg.Path, "err", err)
		f.g.setError(err)
		return nil
	}
	f.g.setError(nil)
	f.list, f.listed = w, make(map[string]bool, len(names))
	f.last, f.pzxid = max(f.last, stat.Czxid, stat.Mzxid, stat.Pzxid), stat.Pzxid
	for _, name := range names {
		f.listed[name] = true
		f.follow(ctx, name)
	}
	for name := range f.g.known() {
		f.follow(ctx, name) // a group of a former session: its guard may hold members
	}
	return nil
}

// follow starts to follow a group unless it is followed already.
func (f *groupsRun) follow(ctx context.Context, name string) {
	if f.running[name] != nil {
		return
	}
	ctx, f.running[name] = context.WithCancel(ctx)
	group := f.g.group(name)
	group.sent = nil // this run has not sent it yet
	group.failed = func() {
		select {
		case f.failing <- name:
		case <-ctx.Done():
		}
	}
	go func() {
		if err := group.Run(ctx, f.s, func(u *view.Group) {
			select {
			case f.updates <- u:
			case <-ctx.Done():
			}
		}); err != nil && ctx.Err() == nil {
			f.g.log.Debug("cannot follow a group", "group", name, "err", err)
		}
		f.ended <- name
	}()
}

// hasEnded forgets a group whose follower has ended, unless its znode is back.
func (f *groupsRun) hasEnded(ctx context.Context, name string) {
	f.running[name]()
	delete(f.running, name)
	delete(f.latest, name)
	delete(f.unreadable, name)
	if ctx.Err() != nil || f.s.Context().Err() != nil {
		return // keep the state for the next session
	}
	f.g.forget(name)
	if f.listed[name] {
		f.follow(ctx, name)
	}
}

// drain waits for the goroutines.
func (f *groupsRun) drain() {
	for len(f.running) > 0 {
		name := <-f.ended
		f.running[name]()
		delete(f.running, name)
	}
}

// emit sends the set when every group has been read and something changed.
func (f *groupsRun) emit() {
	if f.listed == nil {
		return
	}
	set := &view.Groups{Name: f.g.cfg.Name, Path: f.g.cfg.Path, Last: f.last, Groups: []*view.Group{}}
	for name, stop := range f.running {
		u := f.latest[name]
		if u == nil && f.unreadable[name] {
			continue // an unreadable group must not hide the others
		}
		if u == nil {
			return
		}
		// A group whose znode is gone stays while it has members (held).
		if !f.listed[name] && u.Missing && len(u.Members) == 0 {
			stop()
			continue
		}
		set.Groups = append(set.Groups, u)
		set.Last = max(set.Last, u.Last)
	}
	slices.SortFunc(set.Groups, func(a, b *view.Group) int { return strings.Compare(a.Name, b.Name) })
	if f.g.sent != nil && f.g.sent.Equal(set) {
		return
	}
	f.g.sent = set
	if f.up != nil {
		f.up(set)
	}
}

// group returns the follower of that name, with its state from former sessions.
func (g *Groups) group(name string) *Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.groups[name]
	if group == nil {
		group = NewGroup(g.cfg.group(name))
		g.groups[name] = group
	}
	return group
}

func (g *Groups) forget(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, name)
	g.cfg.Metrics.forget(name)
	if g.cfg.Problem != nil {
		g.cfg.Problem(name, nil)
	}
}

func (g *Groups) known() map[string]*Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.groups)
}

// setError notes why the groups cannot be listed; nil: they can.
func (g *Groups) setError(err error) {
	g.mu.Lock()
	old := g.err
	g.err = ""
	if err != nil {
		g.err = err.Error()
	}
	changed := g.err != old
	g.mu.Unlock()
	if changed && g.cfg.Problem != nil {
		g.cfg.Problem("", err)
	}
}
