package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The choices for a template while a group is empty.
const (
	OnEmptyKeep   = "keep"
	OnEmptyRender = "render"
	OnEmptyFail   = "fail"
)

// DefaultMaxMembers bounds the members of one group.
const DefaultMaxMembers = 10000

// DefaultMaxBytes bounds the data of the members of one group.
const DefaultMaxBytes = 64 << 20

// GroupConfig describes one group to follow, or each group of a set. The zero value of an optional
// field means its default.
type GroupConfig struct {
	Name string // label of the group block, or of the groups block
	Path string // group znode, or the parent of those of a set

	Format  string         // see [Decode]; empty: auto
	OnEmpty string         // keep, render or fail; empty: the template says it
	Allow   []netip.Prefix // subnets that members may be in; empty: all
	// Filter, if not nil, returns false for members that are not wanted. It must not block.
	Filter func(*view.Member) bool `json:"-"`
	Guard  GuardConfig             // against the loss of many members at once
	// NoDamping shows every flap of a member.
	NoDamping  bool
	MaxMembers int // 0: 10,000
	// MaxBytes bounds the data of all members. 0 means DefaultMaxBytes, a negative
	// number no bound. When a group exceeds it, the last good members stay in use.
	MaxBytes int64
	// Problem, if not nil, is called when the group cannot be listed or becomes too
	// large, and with nil when it can be used again. In a set, group is its name, and ""
	// when the set cannot be listed or has more groups than maxGroups. It must not block.
	Problem func(group string, err error) `json:"-"`
	// Before is what earlier followers of the group, or of the groups of the set, sent
	// last. The members that are wanted count as there until now, and a hold continues. Of
	// several with the path of the group the first counts.
	Before []*view.Group `json:"-"`

	Logger  *slog.Logger `json:"-"` // nil: discard
	Metrics *Metrics     `json:"-"` // nil: none

	took func(znode string, data []byte) // nil: nobody needs the data of members
}

// Validate returns the errors of the configuration.
func (c GroupConfig) Validate() error {
	if err := session.ValidatePath(c.Path); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	if _, err := decoderOf(c.Format); err != nil {
		return err
	}
	if !slices.Contains([]string{"", OnEmptyKeep, OnEmptyRender, OnEmptyFail}, c.OnEmpty) {
		return fmt.Errorf("on_empty %q is not one of keep, render, fail", c.OnEmpty)
	}
	if c.Guard.MaxLoss < 0 || c.Guard.MaxLoss > 1 {
		return fmt.Errorf("guard: max_loss %v is not a share", c.Guard.MaxLoss)
	}
	return nil
}

// admits returns why a member is not wanted; nil: it is.
func (c *GroupConfig) admits(m *view.Member) error {
	// With an allow list a host name is rejected, because it may resolve to another address
	// later.
	addr, _ := netip.ParseAddr(m.Host)
	if len(c.Allow) > 0 && !slices.ContainsFunc(c.Allow, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return fmt.Errorf("address %s is not within the allowed subnets", m.Host)
	}
	if c.Filter != nil && !c.Filter(m) {
		return ErrIgnore
	}
	return nil
}

// GroupStatus is the state of a group as it is followed.
type GroupStatus struct {
	Name     string          `json:"name"`               // label of the group
	Path     string          `json:"path"`               // group znode
	Missing  bool            `json:"missing,omitempty"`  // the group znode does not exist
	Members  []view.Member   `json:"members"`            // in use now, held ones too; not to be changed
	Held     int             `json:"held"`               // how many members the guard keeps though they are gone
	Holding  time.Time       `json:"holding,omitzero"`   // since when the guard holds
	Base     int             `json:"base,omitempty"`     // size of the group that the guard holds
	Rejected []view.Rejected `json:"rejected,omitempty"` // children that are no members, and why
	Flapping []string        `json:"flapping,omitempty"` // ids of members that damping keeps as they were
	Out      []view.Standing `json:"out,omitempty"`      // members that do not serve, or serve though they are gone, and why
	Updated  time.Time       `json:"updated,omitzero"`   // latest read
	Error    string          `json:"error,omitempty"`    // why the group cannot be read now; empty: it can
}

// Group follows the members of one group. The state of guard and damping lives as
// long as the Group, but a hold can continue in another one (see GroupConfig.Before);
// the copy of the znodes lives as long as a session. All methods but Run may be called from any goroutine. Calls of Run must not overlap.
type Group struct {
	cfg   GroupConfig
	log   *slog.Logger
	fault error
	dec   decoder
	wake  chan struct{} // size 1: Run should look at woken; in a set, that of the set
	woken atomic.Bool

	// Only Run touches what follows.
	rule     rule
	prober   prober
	sent     *view.Group
	reported string        // kind of the problem that was reported; kept across sessions
	set      members       // result of the last step
	values   []view.Member // the members themselves

	accept atomic.Bool // the operator accepts the loss

	mu     sync.Mutex // guards status
	status GroupStatus
}

// NewGroup returns the follower of a group. It does no I/O and starts nothing. Run
// reports an invalid cfg.
func NewGroup(cfg GroupConfig) *Group {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	cfg.MaxMembers = cmp.Or(max(cfg.MaxMembers, 0), DefaultMaxMembers)
	g := &Group{
		cfg: cfg, log: logger(cfg.Logger), wake: make(chan struct{}, 1),
		rule:   rule{cfg: cfg.Guard.withDefaults(), noDamping: cfg.NoDamping},
		status: GroupStatus{Name: cfg.Name, Path: cfg.Path},
	}
	if i := slices.IndexFunc(cfg.Before, func(b *view.Group) bool { return b.Path == cfg.Path }); i >= 0 {
		before := *cfg.Before[i]
		before.Members = slices.DeleteFunc(slices.Clone(before.Members), func(m view.Member) bool { return cfg.admits(&m) != nil })
		g.rule.resume(time.Now(), &before)
	}
	g.prober.found, g.prober.dial = g.wakeRun, new(net.Dialer).DialContext
	g.dec, g.fault = decoderOf(cfg.Format)
	if g.fault == nil {
		g.fault = cfg.Validate()
	}
	return g
}

// logger returns a logger that may be nil in settings.
func logger(l *slog.Logger) *slog.Logger { return cmp.Or(l, slog.New(slog.DiscardHandler)) }

// Accept makes the guard accept the current members.
func (g *Group) Accept() {
	g.accept.Store(true)
	g.wakeRun()
}

func (g *Group) wakeRun() {
	g.woken.Store(true)
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Status returns the current state.
func (g *Group) Status() GroupStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// Run calls up with the group, first its current state, then after each change of
// the members to use, until ctx or the session ends. up may be nil. A later session
// sends only real differences. Run returns nil when ctx ends, the session's cause
// when the session ends, and an error when it cannot continue.
func (g *Group) Run(ctx context.Context, s *session.Session, up func(*view.Group)) error {
	if g.fault != nil {
		return fmt.Errorf("group %s: %w", g.cfg.Name, g.fault)
	}
	s = session.Usable(s, g.cfg.Path)
	defer g.prober.end()
	r := g.newRoster()
	err := mirror.Follow(ctx, s, g.cfg.Path, g.cfg.copyOptions(), g.wake, func(snap *mirror.Snapshot, changed []string) (time.Time, error) {
		names := slices.DeleteFunc(changed, func(rel string) bool { return rel == "" })
		next, different := g.read(ctx, r, r.take(snap, "", names, snap.Errors()))
		if different && up != nil {
			up(g.sent)
		}
		return next, nil
	})
	if err != nil && ctx.Err() == nil && s.Context().Err() == nil {
		return fmt.Errorf("group %s: %w", g.cfg.Name, err)
	}
	return err
}

// read applies the rule to the read members. err says why the group cannot be used; then its
// last members stay in use. read returns when to call it again even if nothing is read (zero:
// never), and whether the result, which is sent, differs from the last one.
func (g *Group) read(ctx context.Context, r *roster, err error) (time.Time, bool) {
	g.problem(err)
	if r.stale {
		return time.Time{}, false
	}
	actual, rejected := r.members()
	held := !g.rule.since.IsZero()
	if g.accept.Swap(false) && held {
		g.rule.accept()
	}
	if lost := g.prober.confirmed(g.rule.lost(g.rule.base, actual)); len(lost) > 0 {
		g.log.Warn("lost members do not answer either", "group", g.cfg.Name, "path", g.cfg.Path, "members", len(lost))
		g.rule.confirm(lost)
	}
	set, next := g.rule.step(time.Now(), actual)
	if g.cfg.Guard.Probe {
		g.prober.watch(ctx, set)
	}
	g.set, g.values = set, set.values(g.set, g.values)
	out := g.rule.out()
	u := &view.Group{
		Name: g.cfg.Name, Path: g.cfg.Path, Members: g.values, OnEmpty: g.cfg.OnEmpty, Rejected: rejected,
		Out: out, Holding: g.rule.since, Missing: r.missing, Last: r.last,
	}
	g.notify(u, held)
	different := g.sent == nil || !g.sent.Equal(u)
	if different {
		g.sent = u
	}
	return next, different
}

// problem shows why the group cannot be used; nil: it can be used. It calls Problem
// when that changes.
func (g *Group) problem(err error) {
	kind, text := "", ""
	if err != nil {
		kind, text = err.Error(), err.Error()
	}
	if errors.Is(err, ErrTooLarge) {
		kind = ErrTooLarge.Error() // the sizes in the text change with every member
	}
	g.mu.Lock()
	g.status.Error = text
	g.mu.Unlock()
	if kind == g.reported {
		return
	}
	g.reported = kind
	if err != nil {
		g.log.Warn("cannot use the group", "group", g.cfg.Name, "path", g.cfg.Path, "err", err)
	}
	if g.cfg.Problem != nil {
		g.cfg.Problem(g.cfg.Name, err)
	}
}

func (g *Group) notify(u *view.Group, wasHolding bool) {
	held := 0
	for _, m := range g.set {
		if m.Held {
			held++
		}
	}
	flapping := lists.Map(g.rule.damped, func(m *view.Member) string { return m.Znode })
	slices.Sort(flapping)
	g.cfg.Metrics.group(g.cfg.Name, len(u.Members), len(u.Rejected), len(flapping), !u.Holding.IsZero())
	switch {
	case !u.Holding.IsZero() && !wasHolding:
		g.log.Warn("group lost many members at once, keeping them", "group", g.cfg.Name, "path", g.cfg.Path, "held", held, "base", len(g.rule.base))
	case u.Holding.IsZero() && wasHolding:
		g.log.Info("group uses its present members again", "group", g.cfg.Name, "path", g.cfg.Path, "members", len(u.Members))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status = GroupStatus{
		Name: u.Name, Path: u.Path, Missing: u.Missing, Members: u.Members, Held: held, Holding: u.Holding,
		Base: len(g.rule.base), Rejected: u.Rejected, Flapping: flapping, Out: u.Out, Updated: time.Now(), Error: g.status.Error,
	}
}

// Instances reads the members of a group once, as [Group.Run] would show them first. A
// group that does not exist has no members. Instances returns the error of the read, or
// the cause of the end of ctx or of the session. To follow a group, use [Group].
func Instances(ctx context.Context, s *session.Session, cfg GroupConfig) ([]view.Member, error) {
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cfg.Problem = func(_ string, err error) { stop(err) }
	var read *view.Group
	err := NewGroup(cfg).Run(run, s, func(g *view.Group) {
		read = g
		stop(nil)
	})
	switch {
	case read != nil:
		return read.Members, nil
	case err == nil:
		err = fmt.Errorf("group %s: %w", cmp.Or(cfg.Name, cfg.Path), context.Cause(run))
	}
	return nil, err
}

// Instance is a member with its payload.
type Instance[T any] struct {
	view.Member

	Payload T
	Err     error // the member's data is not the JSON of a T, and Payload has what could be read
}

// InstancesOf is [Instances] with the payload of each member. In the format curator
// that is the payload of the record; in other formats it is all data of the member, as
// JSON.
func InstancesOf[T any](ctx context.Context, s *session.Session, cfg GroupConfig) ([]Instance[T], error) {
	all := map[string][]byte{}
	cfg.took = func(znode string, data []byte) { all[znode] = data }
	members, err := Instances(ctx, s, cfg)
	list := make([]Instance[T], len(members))
	for i, m := range members {
		data := all[m.Znode]
		if payload, ok := parseObject(data).fields["payload"]; ok {
			data = payload
		}
		list[i].Member, list[i].Err = m, json.Unmarshal(data, &list[i].Payload)
	}
	return list, err
}

// standingsShown bounds the standings in the status of a group.
const standingsShown = 200

// out returns the standings of the members that do not just serve, by their keys.
func (r *rule) out() []view.Standing {
	var list []*memberRecord
	for _, rec := range r.records {
		if !rec.out.IsZero() || !rec.since.IsZero() {
			list = append(list, rec)
		}
	}
	slices.SortFunc(list, func(a, b *memberRecord) int { return compareKeys(a.member, b.member) })
	var out []view.Standing
	for _, rec := range list[:min(len(list), standingsShown)] {
		m := rec.member
		s := view.Standing{ID: m.ID, Node: m.Node, Address: m.Address(), Since: rec.out}
		switch {
		case rec.gone && rec.excused && !rec.believed && !r.since.IsZero():
			s.State, s.Serves, s.Until = view.StandingHeld, true, r.heldUntil(rec)
		case !rec.since.IsZero():
			s.State, s.Since, s.Until, s.Penalty, s.Limit = view.StandingSpared, rec.since, rec.until(), int(rec.penalty), penaltySuppress
			if s.Serves = rec.out.IsZero(); r.damped.has(m) {
				s.State, s.Serves = view.StandingFlapping, false
			}
		case rec.gone:
			s.State = view.StandingGone
		default:
			s.State = m.Status
		}
		out = append(out, s)
	}
	return out
}
