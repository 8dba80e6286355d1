package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
)

// Group membership.
//
// Steps (ZooKeeper Recipes, "Group Membership"): a member keeps its znode (see
// [Node]). A reader keeps a copy of the group: it lists the children with a watch, reads
// those that are new, and lists again when the watch fires.

// Group is a set of members at a path.
type Group struct {
	s      *session.Session
	path   string
	logger *slog.Logger
}

// Member is one member of a group.
type Member struct {
	ID    string // name of its znode
	Data  []byte // as it was when the member joined
	Czxid int64  // of its znode: the transaction in which it joined
}

// NewGroup returns the group at path. It does no I/O.
func NewGroup(s *session.Session, path string, logger *slog.Logger) *Group {
	return &Group{s: session.Usable(s, path), path: path, logger: logger}
}

// Join makes this process a member until ctx or the session ends. It blocks, and
// returns the error of [Node.Run].
func (g *Group) Join(ctx context.Context, id string, data []byte) error {
	if id == "" || strings.Contains(id, "/") {
		return fmt.Errorf("join group %s: %w: id %q is not the name of a znode", g.path, session.ErrBadPath, id)
	}
	return NewNode(NodeConfig{Path: child(g.path, id), Data: data, Logger: g.logger}).Run(ctx, g.s)
}

// Members returns the current members, sorted by id. A group that does not exist
// has no members.
func (g *Group) Members(ctx context.Context) ([]Member, error) {
	children, err := g.s.GetChildren(ctx, g.path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("list group %s: %w", g.path, err)
	}
	var members []Member
	for _, c := range children {
		if c.Err != nil {
			return nil, c.Err
		}
		members = append(members, Member{ID: c.Name, Data: c.Data, Czxid: c.Stat.Czxid})
	}
	return members, nil
}

// Follow calls up with the members, at once and after a change, until ctx or the session
// ends. It may skip changes. It returns nil when ctx ends, and the cause when the session
// ends. It never changes a slice after the call.
func (g *Group) Follow(ctx context.Context, up func([]Member)) error {
	var members []Member
	first := true
	return mirror.Follow(ctx, session.Usable(g.s, g.path, up != nil), g.path, mirror.Options{Depth: 1, Logger: g.logger}, nil, func(snap *mirror.Snapshot, _ []string) (time.Time, error) {
		for _, err := range snap.Errors() { // any of them
			return time.Time{}, fmt.Errorf("follow group %s: %w", g.path, err)
		}
		var next []Member
		snap.Walk(func(name string, n *mirror.Node) bool {
			if name != "" {
				next = append(next, Member{ID: name, Data: n.Data, Czxid: n.Stat.Czxid})
			}
			return true
		})
		if first || !slices.EqualFunc(members, next, func(a, b Member) bool { return a.ID == b.ID && a.Czxid == b.Czxid }) {
			first, members = false, next
			up(members)
		}
		return time.Time{}, nil
	})
}

// The set partitioner divides M shards among N members.
//
//	<path>/party/<32 hex>-<id>                      ephemeral, one per member
//	<path>/locks/<shard>/<32 hex>__lock__<sequence> the lock of a shard
//
// Steps (kazoo, SetPartitioner; the layout and the division are kazoo's): join the party;
// when it has not changed for a while, divide the shards; give back the shards that now
// belong to others; then take the locks of our shards.
//
// Guaranteed: one owner per shard, by its lock. The division only says who asks for it.

// DefaultSettle is how long a party must not change before the shards are divided.
const DefaultSettle = 5 * time.Second

// PartitionerConfig describes a member of a party that divides shards.
type PartitionerConfig struct {
	Path   string
	ID     string   // of this member; no other member has it
	Shards []string // the same at each member; names of znodes
	// Settle is how long the party must not change before shards change hands; 0:
	// DefaultSettle. Until then each member keeps its shards.
	Settle time.Duration
	// Work works on a shard. It runs in a goroutine for each shard, while the shard is ours.
	// ctx ends with the hold, with the ctx of Run, and with ErrReleased when another member
	// gets the shard: return soon then, because the shard is given back after that. When it
	// returns earlier, the shard stays ours. Pass hold.Fence on, or write with hold.Guard.
	Work func(ctx context.Context, shard string, hold *Hold)
	// Divide returns the shards of the member with that index in members, which are
	// sorted, as the shards are. All members must use the same function; nil: each gets
	// every nth, as in kazoo.
	Divide func(index int, members, shards []string) []string
	Logger *slog.Logger // nil: discard
}

// Partitioner is one member of the party. Calls of Run must not overlap.
type Partitioner struct {
	cfg  PartitionerConfig
	name string // of our znode
}

// NewPartitioner returns a member of the party. It does no I/O; Run reports an invalid
// cfg.
func NewPartitioner(cfg PartitionerConfig) *Partitioner {
	cfg.Settle = cmp.Or(cfg.Settle, DefaultSettle)
	cfg.Shards = slices.Sorted(slices.Values(cfg.Shards))
	if cfg.Divide == nil {
		cfg.Divide = func(index int, members, shards []string) []string {
			var ours []string
			for i := index; i < len(shards); i += len(members) {
				ours = append(ours, shards[i])
			}
			return ours
		}
	}
	return &Partitioner{cfg: cfg, name: newHex() + "-" + cfg.ID}
}

func (p *Partitioner) validate() error {
	if p.cfg.Work == nil {
		return fmt.Errorf("%w: no Work", ErrFormat)
	}
	if len(slices.Compact(slices.Clone(p.cfg.Shards))) < len(p.cfg.Shards) {
		return fmt.Errorf("%w: a shard is listed twice", ErrFormat)
	}
	for _, name := range append([]string{p.cfg.ID}, p.cfg.Shards...) {
		if name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("%w: ID or shard %q is not the name of a znode", session.ErrBadPath, name)
		}
		if err := session.ValidatePath("/" + name); err != nil {
			return err
		}
	}
	return nil
}

// Run is a member of the party until ctx or the session ends. When it returns, each Work
// has returned. It returns nil when ctx ends, the session's cause when the session ends,
// and an error when it cannot continue. Run it again in the next session.
func (p *Partitioner) Run(ctx context.Context, s *session.Session) error {
	s = session.Usable(s, p.cfg.Path)
	if err := p.validate(); err != nil {
		return fmt.Errorf("partitioner %s: %w", p.cfg.Path, err)
	}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	party := NewGroup(s, child(p.cfg.Path, "party"), p.cfg.Logger)
	changes := make(chan []Member)
	wg.Go(func() { cancel(party.Join(run, p.name, nil)) })
	wg.Go(func() {
		cancel(party.Follow(run, func(members []Member) {
			select {
			case changes <- members:
			case <-run.Done():
			}
		}))
	})
	d := division{p: p, s: s, ctx: run, fail: cancel, owned: map[string]*owned{}}
	d.run(changes)
	wg.Wait()
	return mirror.Ended(ctx, s, fmt.Errorf("partitioner %s: %w", p.cfg.Path, context.Cause(run)))
}

// ours returns our shards among those members, nil when we are not one of them yet.
func (p *Partitioner) ours(members []Member) []string {
	byID := func(a, b string) int { return cmp.Or(strings.Compare(memberID(a), memberID(b)), strings.Compare(a, b)) }
	var names, ids []string
	for _, m := range members {
		names = append(names, m.ID)
	}
	slices.SortFunc(names, byID)
	for _, name := range names {
		ids = append(ids, memberID(name))
	}
	if index := slices.Index(names, p.name); index >= 0 {
		return p.cfg.Divide(index, ids, p.cfg.Shards)
	}
	return nil
}

// memberID returns the id in the name of a member's znode.
func memberID(name string) string { return name[min(33, len(name)):] }

// division is what one Run owns. Only its goroutine uses it.
type division struct {
	p     *Partitioner
	s     *session.Session
	ctx   context.Context
	fail  context.CancelCauseFunc
	owned map[string]*owned
}

// owned is a shard that we ask for or own.
type owned struct {
	stop context.CancelCauseFunc
	done chan struct{} // closed when it is given back
}

// run divides the shards again some time after each change, until the context ends. Then
// it gives all back.
func (d *division) run(changes <-chan []Member) {
	settled := time.NewTimer(time.Hour)
	defer settled.Stop()
	var members []Member
	for {
		select {
		case <-d.ctx.Done():
			d.release(nil)
			return
		case members = <-changes:
			settled.Reset(d.p.cfg.Settle)
		case <-settled.C:
			want := d.p.ours(members)
			d.release(want)
			d.take(want)
		}
	}
}

// release gives back the shards that are not wanted, and waits until they are free.
func (d *division) release(want []string) {
	var left []*owned
	for shard, o := range d.owned {
		if !slices.Contains(want, shard) {
			o.stop(ErrReleased)
			left = append(left, o)
			delete(d.owned, shard)
		}
	}
	for _, o := range left {
		<-o.done
	}
}

// take asks for the wanted shards, and works on each while it is ours.
func (d *division) take(want []string) {
	for _, shard := range want {
		if d.owned[shard] != nil {
			continue
		}
		ctx, stop := context.WithCancelCause(d.ctx)
		o := &owned{stop: stop, done: make(chan struct{})}
		d.owned[shard] = o
		go func() {
			defer close(o.done)
			defer stop(nil)
			lock := NewLock(d.s, LockConfig{
				Path: child(child(d.p.cfg.Path, "locks"), shard), Dialect: Kazoo, Data: []byte(d.p.cfg.ID), Logger: d.p.cfg.Logger,
			})
			err := lock.while(ctx, func(ctx context.Context, hold *Hold) error {
				d.p.cfg.Work(ctx, shard, hold)
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if err != nil && ctx.Err() == nil {
				d.fail(err)
			}
		}()
	}
}
