package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
)

// Participants are the contenders below one path, in their order. Locks,
// semaphores and elections share them.
//
//	<path>/_c_<uuid>-<mark><sequence>   ephemeral sequential
//
// Steps (Hunt and others, "ZooKeeper: Wait-free coordination for
// Internet-scale systems", Simple Locks without Herd Effect):
//
//  1. create our znode, protected by a GUID;
//  2. list the children; when no contender precedes us, it is our turn;
//  3. read the nearest predecessor with a watch; when it is gone, or its watch
//     fires, go to 2.
//
// Guarantees: contenders get their turn in the order of their sequence numbers. One
// departure wakes one contender. Candidates also watch their own znode while they
// wait. So when their turn comes, they know without another request that the znode is
// theirs, and they notice at once when an operator deletes it. Waiters for a lock
// notice that when the wait ends.
type Participants struct {
	// Path is the znode whose children contend. Join creates it when missing.
	Path string
	// Logger gets one warning about children that are not contenders; nil: discard.
	Logger *slog.Logger

	naming naming
	proven bool // waiters watch their own znodes too
	acl    []session.ACL
	warned sync.Once // about children that are no contenders
	mixed  sync.Once // about contenders of the other family
}

// Candidates returns the participants of an election, for a program that itself decides
// when to join and leave the line. Package election does that for all others.
func Candidates(path, dialect string, logger *slog.Logger) (*Participants, error) {
	curator := latchNames
	if dialect == CuratorSelector {
		curator = lockNames
	}
	n, err := inDialect(dialect, curator, kazooNames)
	if err == nil {
		err = session.ValidatePath(path)
	}
	if err != nil {
		return nil, err
	}
	return &Participants{Path: path, Logger: logger, naming: n, proven: true}, nil
}

// Participant is our contender, with its znode. Only one goroutine at a time may use it.
type Participant struct {
	participants *Participants
	s            *session.Session
	path         string
	seq          Sequence
	stat         session.Stat
	own          *session.Watch // set on our znode while we wait; nil: none
}

// Join creates our znode at the end of the line.
func (ps *Participants) Join(ctx context.Context, s *session.Session, data []byte) (*Participant, error) {
	s = session.Usable(s, ps.Path)
	path, stat, err := createContender(ctx, s, ps.Path, ps.naming, data, ps.acl)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", ps.Path, err)
	}
	p, err := ps.Adopt(s, path, stat)
	if err != nil {
		abandon(s, path)
		return nil, err
	}
	return p, nil
}

// Adopt takes over a znode that the session already owns, for example one that a
// previous process of this agent made. The znode keeps its place in the line.
func (ps *Participants) Adopt(s *session.Session, path string, stat session.Stat) (*Participant, error) {
	c, ok := parseContender(base(path))
	if !ok {
		return nil, fmt.Errorf("join %s: no sequence in %q", ps.Path, base(path))
	}
	if stat.EphemeralOwner != s.ID() {
		return nil, fmt.Errorf("join %s: %s belongs to another session: %w", ps.Path, path, ErrNotHeld)
	}
	return &Participant{participants: ps, s: s, path: path, seq: c.seq, stat: stat}, nil
}

// Path returns the path of our znode.
func (p *Participant) Path() string { return p.path }

// Fence returns the czxid of our znode: it grows from holder to holder.
func (p *Participant) Fence() int64 { return p.stat.Czxid }

// Sequence returns our number in the order.
func (p *Participant) Sequence() Sequence { return p.seq }

// Mark returns the text before the sequence number in the names of these participants.
func (ps *Participants) Mark() string { return ps.naming.mark }

// Leave deletes our znode. It succeeds when the znode is already gone.
func (p *Participant) Leave(ctx context.Context) error {
	p.unwatch()
	return removeOwn(ctx, p.s, p.path)
}

// Abandon deletes our znode in the background, for callers whose context has
// ended.
func (p *Participant) Abandon() {
	p.unwatch()
	abandon(p.s, p.path)
}

// Hold begins to hold. Call it when it is our turn. It first reads our znode with a
// watch and checks that it is ours, unless a watch set during the wait shows that the
// znode has not changed. The hold's context ends when the znode vanishes, the
// lease runs out or the session ends. It does not end with ctx.
func (p *Participant) Hold(ctx context.Context) (*Hold, error) {
	// If an event came before the reply of the latest list, it has fired the
	// watch by now.
	if p.own == nil || p.own.Fired() {
		if err := p.prove(ctx); err != nil {
			return nil, fmt.Errorf("hold %s: %w", p.path, err)
		}
	}
	own := p.own
	p.own = nil
	return newHold(ctx, p.s, p.participants.Path, p.path, p.Fence(), holdOptions{seen: own}), nil
}

// prove reads our znode with a watch and checks that it is ours. It returns
// ErrLost when it is not.
func (p *Participant) prove(ctx context.Context) error {
	p.unwatch()
	var err error
	_, p.own, err = watchOwn(ctx, p.s, p.path, p.stat.Czxid)
	return err
}

func (p *Participant) unwatch() {
	p.own.Stop()
	p.own = nil
}

// First lists the participants once and reports whether it is our turn. It returns
// ErrLost when our znode is gone.
func (p *Participant) First(ctx context.Context) (bool, error) {
	pred, err := p.ahead(ctx)
	return pred == "", err
}

// Wait returns nil when it is our turn. It returns the cause when ctx or the session
// ends first, and ErrLost when our znode has vanished. After an error, call Leave or
// Abandon.
func (p *Participant) Wait(ctx context.Context) error {
	for {
		pred, err := p.ahead(ctx)
		if err == nil && pred == "" {
			return nil
		}
		if err == nil {
			err = p.waitFor(ctx, pred)
		}
		if err != nil {
			p.unwatch()
			return err
		}
	}
}

// waitFor returns nil when it is time to list the participants again: our predecessor
// has left, or our own znode has changed.
func (p *Participant) waitFor(ctx context.Context, pred string) error {
	if p.participants.proven && (p.own == nil || p.own.Fired()) {
		if err := p.prove(ctx); err != nil {
			return fmt.Errorf("watch %s: %w", p.path, err)
		}
	}
	_, stat, watch, err := watchData(ctx, p.s, child(p.participants.Path, pred))
	if err != nil {
		return fmt.Errorf("watch %s: %w", pred, err)
	}
	if watch != nil && stat.EphemeralOwner == 0 {
		watch.Stop()
		return fmt.Errorf("%w: %s is before us in the line, belongs to no session and never leaves by itself: delete it", ErrInTheWay, child(p.participants.Path, pred))
	}
	if watch == nil {
		return nil // it left between the list and the read
	}
	defer watch.Stop()
	for {
		if err := p.s.WaitAny(ctx, watch, p.own); err != nil || watch.Fired() || p.own.Fired() {
			return err
		}
		// Without an event, list only if the line has moved.
		_, same, err := p.s.Exists(ctx, child(p.participants.Path, pred))
		if err == nil && same && p.own != nil {
			_, same, err = p.s.Exists(ctx, p.path)
		}
		if err != nil || !same {
			return err
		}
	}
}

// ahead returns the contender that we wait for; empty when it is our turn.
func (p *Participant) ahead(ctx context.Context) (string, error) {
	names, stat, err := p.s.Children(ctx, p.participants.Path)
	if errors.Is(err, session.ErrNoNode) {
		return "", fmt.Errorf("%s: %w", p.path, ErrLost)
	}
	if err != nil {
		return "", fmt.Errorf("list %s: %w", p.participants.Path, err)
	}
	kind := p.participants.naming.kind
	if err := otherKind(p.participants.Path, kind, names); err != nil {
		return "", err
	}
	if err := isSemaphore(ctx, p.s, p.participants.Path, kind, stat); err != nil {
		return "", err
	}
	if !slices.Contains(names, base(p.path)) {
		return "", fmt.Errorf("%s: %w", p.path, ErrLost)
	}
	pred, foreign := predecessor(names, p.seq, p.participants.naming.shared)
	p.participants.warn(names, foreign)
	return pred, nil
}

// warn logs once that children are no contenders we know, and once that contenders of both
// families use the path: by default (see kazoo's extra_lock_patterns) kazoo's contenders do
// not wait for Curator's, so both hold.
func (ps *Participants) warn(names, foreign []string) {
	if ps.Logger == nil {
		return
	}
	if len(foreign) > 0 {
		ps.warned.Do(func() {
			ps.Logger.Warn("children that do not contend are ignored", "path", ps.Path, "child", foreign[0], "count", len(foreign))
		})
	}
	for _, name := range names {
		if c, ok := parseContender(name); ok && c.hex != ps.naming.hex {
			ps.mixed.Do(func() {
				ps.Logger.Warn("contenders of kazoo and of Curator share one path: kazoo's do not wait for Curator's", "path", ps.Path, "child", name)
			})
			return
		}
	}
}

// watchData reads a znode with a watch. It does not use exists, which would leave a watch on
// a missing znode, unless it may not read the data. The watch is nil without an error when the znode does not exist.
func watchData(ctx context.Context, s *session.Session, path string) ([]byte, session.Stat, *session.Watch, error) {
	data, stat, watch, err := s.GetW(ctx, path)
	if errors.Is(err, session.ErrNoAuth) {
		stat, watch, err = existsW(ctx, s, path)
	}
	if errors.Is(err, session.ErrNoNode) {
		return nil, stat, nil, nil
	}
	return data, stat, watch, err
}

// existsW watches a znode that we may not read: an exists needs no permission. It returns
// ErrNoNode, and leaves no watch, when the znode does not exist.
func existsW(ctx context.Context, s *session.Session, path string) (session.Stat, *session.Watch, error) {
	stat, exists, watch, err := s.ExistsW(ctx, path)
	if err == nil && !exists {
		watch.Stop()
		err = session.ErrNoNode
	}
	return stat, watch, err
}

// watchOwn is watchData for a znode of ours. It returns ErrLost when that is gone, or not
// the one with that czxid.
func watchOwn(ctx context.Context, s *session.Session, path string, czxid int64) ([]byte, *session.Watch, error) {
	data, stat, watch, err := watchData(ctx, s, path)
	if err == nil && (watch == nil || stat.EphemeralOwner != s.ID() || stat.Czxid != czxid) {
		watch.Stop()
		return nil, nil, ErrLost
	}
	return data, watch, err
}

// Leader is the first of the participants, as read at one moment.
type Leader struct {
	Path string       // of its znode; empty when there is no participant
	Data []byte       // usually its id
	Stat session.Stat // of its znode; the Czxid is the term
}

// Follow calls up with the leader, at once and when another participant leads or the
// leader's data change. It may skip leaders. It returns nil when ctx ends, and the cause
// when the session ends. It watches only the leader's znode, or the path while there is no
// participant. Each change of the leader wakes every follower.
func (ps *Participants) Follow(ctx context.Context, s *session.Session, up func(Leader)) error {
	s = session.Usable(s, ps.Path, up != nil)
	last := Leader{Path: "unknown"}
	for {
		leader, watch, err := ps.leader(ctx, s)
		if err != nil {
			return mirror.Ended(ctx, s, err)
		}
		if leader.Path != last.Path || leader.Stat.Czxid != last.Stat.Czxid || leader.Stat.Mzxid != last.Stat.Mzxid {
			last = leader
			up(leader)
		}
		if err := watch.Wait(ctx); err != nil {
			return mirror.Ended(ctx, s, err)
		}
	}
}

// leader reads the leader with a watch that fires when the leader may have changed.
func (ps *Participants) leader(ctx context.Context, s *session.Session) (Leader, *session.Watch, error) {
	for {
		names, _, err := s.Children(ctx, ps.Path)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return Leader{}, nil, err
		}
		c, ok := first(names)
		if !ok {
			list, watch, err := s.ListW(ctx, ps.Path)
			if err != nil {
				return Leader{}, nil, err
			}
			if _, ok := first(list.Names); !ok {
				return Leader{}, watch, nil
			}
			watch.Stop()
			continue
		}
		path := child(ps.Path, c.name)
		data, stat, watch, err := s.GetW(ctx, path)
		if !errors.Is(err, session.ErrNoNode) {
			return Leader{path, data, stat}, watch, err
		}
	}
}
