package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

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
//  2. list the children; when nobody stands before us, it is our turn;
//  3. read the nearest predecessor with a watch; when it is gone, or its watch
//     says "read again", go to 2.
//
// Guarantees: contenders get their turn in the order of their sequences; one
// departure wakes one contender. Candidates also watch their own znode while
// they wait: when their turn comes it is known to be theirs without another
// request, and one that an operator deletes is missed at once. Waiters for a lock
// miss theirs when the wait ends.
type Participants struct {
	// Path is the znode whose children contend; it is created when missing.
	Path string
	// Logger is told once about children that do not belong; nil: nobody.
	Logger *slog.Logger

	naming naming
	shared bool // wait for exclusive contenders only
	proven bool // who waits watches its own znode, too
	acl    []session.ACL
	warned sync.Once // about children that do not belong
	mixed  sync.Once // about contenders of the other family
}

// Candidates returns the participants of an election.
func Candidates(path, dialect string, logger *slog.Logger) (*Participants, error) {
	n, err := candidateNaming(dialect)
	if err != nil {
		return nil, err
	}
	if err := session.ValidatePath(path); err != nil {
		return nil, err
	}
	return &Participants{Path: path, Logger: logger, naming: n, proven: true}, nil
}

// Participant is our contender, with its znode. It is used by one goroutine at a time.
type Participant struct {
	participants *Participants
	s            *session.Session
	path         string
	seq          Sequence
	stat         session.Stat
	own          *session.Watch // set on our znode while we wait; nil: none
}

// Join creates a znode behind all others.
func (ps *Participants) Join(ctx context.Context, s *session.Session, data []byte) (*Participant, error) {
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

// Adopt takes over a znode that the session owns already, for example one that
// a former process of this agent made. It stands where it stood.
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

// Mark returns what stands before our sequence in the names of these participants.
func (ps *Participants) Mark() string { return ps.naming.mark }

// Leave deletes our znode. That it is gone already is no error.
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

// Hold begins to hold, when it is our turn: our znode is read, with a
// watch, before anything is believed, unless a watch that was set while we waited
// says that nothing has happened to it since. The hold's context ends when the
// znode vanishes, the lease runs out or the session ends, not with ctx.
func (p *Participant) Hold(ctx context.Context) (*Hold, error) {
	// An event that came before the reply of the newest list has fired the
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
	_, stat, watch, err := p.s.GetW(ctx, p.path)
	if errors.Is(err, session.ErrNoNode) {
		return ErrLost
	}
	if err != nil {
		return err
	}
	if stat.EphemeralOwner != p.s.ID() || stat.Czxid != p.stat.Czxid {
		watch.Stop()
		return ErrLost
	}
	p.own = watch
	return nil
}

func (p *Participant) unwatch() {
	p.own.Stop()
	p.own = nil
}

// First lists the participants once and reports whether it is our turn. It returns
// ErrLost when our znode is not there any more.
func (p *Participant) First(ctx context.Context) (bool, error) {
	pred, err := p.ahead(ctx)
	return pred == "", err
}

// Wait returns when nobody stands before us, with the cause of ctx or of the
// session's end, or with ErrLost when our znode has vanished. The caller then
// leaves or abandons.
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

// waitFor returns nil when the participants are to be listed again: the one before us has
// left, or something happened to our own znode.
func (p *Participant) waitFor(ctx context.Context, pred string) error {
	if p.participants.proven && (p.own == nil || p.own.Fired()) {
		if err := p.prove(ctx); err != nil {
			return fmt.Errorf("watch %s: %w", p.path, err)
		}
	}
	watch, stat, err := watchData(ctx, p.s, child(p.participants.Path, pred))
	if err != nil {
		return fmt.Errorf("watch %s: %w", pred, err)
	}
	if watch != nil && stat.EphemeralOwner == 0 {
		watch.Stop()
		return fmt.Errorf("%w: %s stands before us, belongs to no session and never leaves by itself: delete it", ErrInTheWay, child(p.participants.Path, pred))
	}
	if watch == nil {
		return nil // it left between the list and the read
	}
	defer watch.Stop()
	for {
		if err := p.s.WaitAny(ctx, watch, p.own); err != nil || watch.Fired() || p.own.Fired() {
			return err
		}
		// Without an event: the line is listed only if it has moved.
		if same, err := p.stands(ctx, pred); err != nil || !same {
			return err
		}
	}
}

// stands reports whether the one before us is still there and, where we watch our own
// znode, that too.
func (p *Participant) stands(ctx context.Context, pred string) (bool, error) {
	_, same, err := p.s.Exists(ctx, child(p.participants.Path, pred))
	if err == nil && same && p.own != nil {
		_, same, err = p.s.Exists(ctx, p.path)
	}
	return same, err
}

// ahead returns whom we wait for; empty when it is our turn.
func (p *Participant) ahead(ctx context.Context) (string, error) {
	names, stat, err := p.s.Children(ctx, p.participants.Path)
	if errors.Is(err, session.ErrNoNode) {
		return "", fmt.Errorf("%s: %w", p.path, ErrLost)
	}
	if err != nil {
		return "", fmt.Errorf("list %s: %w", p.participants.Path, err)
	}
	kind := p.participants.naming.kind()
	if err := otherKind(p.participants.Path, kind, names); err != nil {
		return "", err
	}
	if err := isSemaphore(ctx, p.s, p.participants.Path, kind, stat); err != nil {
		return "", err
	}
	if !slices.Contains(names, base(p.path)) {
		return "", fmt.Errorf("%s: %w", p.path, ErrLost)
	}
	pred, foreign := predecessor(names, p.seq, p.participants.shared)
	p.participants.warn(foreign)
	p.participants.warnMixed(names)
	return pred, nil
}

// warnMixed logs once that contenders of both families stand on the path: unless
// kazoo is told otherwise (extra_lock_patterns), its contenders do not wait for
// Curator's, and both hold.
func (ps *Participants) warnMixed(names []string) {
	if ps.Logger == nil {
		return
	}
	for _, name := range names {
		if c, ok := parseContender(name); ok && c.kazoo != ps.naming.hex {
			ps.mixed.Do(func() {
				ps.Logger.Warn("contenders of kazoo and of Curator stand on one path: kazoo's do not wait for Curator's", "path", ps.Path, "child", name)
			})
			return
		}
	}
}

// warn logs once that children are no contenders we know.
func (ps *Participants) warn(foreign []string) {
	if len(foreign) == 0 || ps.Logger == nil {
		return
	}
	ps.warned.Do(func() {
		ps.Logger.Warn("children that do not contend are ignored", "path", ps.Path, "child", foreign[0], "count", len(foreign))
	})
}

// watchData watches a znode that may vanish: nil without an error means that
// it is not there. It reads instead of asking whether it exists, because that
// would leave a watch on the missing znode; only when the znode may not be
// read does it fall back, as an exists needs no permission.
func watchData(ctx context.Context, s *session.Session, path string) (*session.Watch, session.Stat, error) {
	_, stat, watch, err := s.GetW(ctx, path)
	switch {
	case err == nil:
		return watch, stat, nil
	case errors.Is(err, session.ErrNoNode):
		return nil, stat, nil
	case !errors.Is(err, session.ErrNoAuth):
		return nil, stat, err
	}
	stat, exists, watch, err := s.ExistsW(ctx, path)
	if err != nil {
		return nil, stat, err
	}
	if !exists {
		watch.Stop()
		return nil, stat, nil
	}
	return watch, stat, nil
}
