package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// The barrier.
//
// Steps (ZooKeeper Recipes, "Barriers"; Apache Curator's DistributedBarrier): a
// waiter asks whether the znode exists and sets a watch. It asks again each time
// the watch fires, until the znode does not exist.

// Barrier makes callers of Wait wait while it is closed.
type Barrier struct {
	s    *session.Session
	path string
}

// NewBarrier returns the barrier at path. It does no I/O. The barrier is open
// while path does not exist.
func NewBarrier(s *session.Session, path string) *Barrier {
	return &Barrier{session.Usable(s, path), path}
}

// Close closes the barrier. Closing a closed barrier succeeds.
func (b *Barrier) Close(ctx context.Context) error {
	err := untilKnown(ctx, func() error {
		return withContainers(ctx, b.s, b.path, func() error {
			_, _, err := b.s.Create(ctx, b.path, nil, session.Persistent)
			return err
		})
	})
	if err == nil || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	return fmt.Errorf("close barrier: %w", err)
}

// Open opens the barrier for all waiters. Opening an open barrier succeeds.
func (b *Barrier) Open(ctx context.Context) error {
	stat, closed, err := lookAgain(ctx, b.s, b.path) // a server that lags must not hide a Close
	if err == nil && closed {
		err = removeExactly(ctx, b.s, b.path, stat.Czxid)
	}
	if err != nil {
		return fmt.Errorf("open barrier: %w", err)
	}
	return nil
}

// Wait returns nil when the barrier is open. It returns the cause when ctx or the
// session ends first.
func (b *Barrier) Wait(ctx context.Context) error {
	if err := b.s.Sync(ctx, b.path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("wait for barrier: %w", err)
	}
	for {
		_, closed, watch, err := b.s.ExistsW(ctx, b.path)
		if err != nil {
			return fmt.Errorf("wait for barrier: %w", err)
		}
		if !closed {
			watch.Stop()
			return nil
		}
		if err := watch.Wait(ctx); err != nil {
			return fmt.Errorf("wait for barrier %s: %w", b.path, err)
		}
	}
}

// The double barrier: N members begin together and end together.
//
// Steps (ZooKeeper Recipes, "Double Barriers"; the layout of Apache Curator and
// kazoo). To enter, a member watches whether ready exists, creates its znode, and
// counts the members, without ready. It creates ready when there are N; otherwise it
// waits for ready. To leave, the member with the lowest name waits for the highest.
// The others delete their znodes and wait for the lowest. The last one deletes ready with
// its own znode.

// DoubleBarrierConfig describes a double barrier.
type DoubleBarrierConfig struct {
	Path string // of one round; its children are the members
	N    int    // members that begin together
	// ID names our member; unique among the members. Empty: none.
	ID   string
	Data []byte // data of our znode, usually a host name
}

// DoubleBarrier lets N members begin together and end together. Each member needs its
// own DoubleBarrier.
type DoubleBarrier struct {
	s          *session.Session
	cfg        DoubleBarrierConfig
	own, ready string // paths; that of our member is empty until it has joined
}

const readyName = "ready"

// NewDoubleBarrier returns one member of a double barrier. It does no I/O.
func NewDoubleBarrier(s *session.Session, cfg DoubleBarrierConfig) *DoubleBarrier {
	return &DoubleBarrier{s: session.Usable(s, cfg.Path), cfg: cfg, ready: child(cfg.Path, readyName)}
}

// Enter returns when N members are inside. It returns ErrRound when the round began
// before we came, and session.ErrNodeExists when a member has our id. When ctx ends
// first, Enter removes our member.
func (b *DoubleBarrier) Enter(ctx context.Context) (*Hold, error) {
	if b.cfg.N < 1 || strings.Contains(b.cfg.ID, "/") {
		return nil, fmt.Errorf("enter %s: %w: N is %d and ID %q; N is 1 or more, and an ID has no slash", b.cfg.Path, ErrFormat, b.cfg.N, b.cfg.ID)
	}
	// Set the watch before our znode exists: then we notice ready even if it
	// exists only for a moment.
	connection := b.s.Connection()
	_, over, watch, err := b.s.ExistsW(ctx, b.ready)
	if err != nil {
		return nil, fmt.Errorf("enter: %w", err)
	}
	if over {
		watch.Stop()
		return nil, fmt.Errorf("enter %s: %w", b.cfg.Path, ErrRound)
	}
	stat, err := b.join(ctx)
	if err != nil {
		watch.Stop()
		return nil, fmt.Errorf("enter: %w", err)
	}
	if err := b.await(ctx, watch, connection); err != nil {
		abandon(b.s, b.own)
		return nil, fmt.Errorf("enter %s: %w", b.cfg.Path, err)
	}
	return newHold(ctx, b.s, b.cfg.Path, b.own, stat.Czxid, holdOptions{}), nil
}

// join creates our member. Its name is never used again, so whoever checks it checks us.
func (b *DoubleBarrier) join(ctx context.Context) (session.Stat, error) {
	var stat session.Stat
	err := withContainers(ctx, b.s, b.ready, func() error {
		unique := uuid.NewString()
		if b.cfg.ID != "" {
			unique = session.ProtectedPrefix(unique)
		}
		var err error
		b.own, stat, err = b.s.CreateUnique(ctx, b.cfg.Path, unique, b.cfg.ID, b.cfg.Data, session.Ephemeral)
		return err
	})
	if err != nil || b.cfg.ID == "" {
		return stat, err
	}
	own := base(b.own)
	members, err := b.members(ctx)
	for _, m := range members {
		if m != own && len(m) == len(own) && strings.HasPrefix(m, "_c_") && strings.HasSuffix(m, "-"+b.cfg.ID) {
			err = fmt.Errorf("%s has our id: %w", child(b.cfg.Path, m), session.ErrNodeExists)
		}
	}
	if err != nil {
		abandon(b.s, b.own)
	}
	return stat, err
}

// await waits until ready stands, and creates it when the members are N.
func (b *DoubleBarrier) await(ctx context.Context, watch *session.Watch, connection uint64) error {
	for {
		members, err := b.members(ctx)
		if err == nil && !slices.Contains(members, base(b.own)) {
			err = ErrLost
		}
		if err != nil {
			watch.Stop()
			return err
		}
		if len(members) >= b.cfg.N {
			open, openErr := b.open(ctx, members)
			if openErr == nil && open {
				openErr = b.inside(ctx)
			}
			if open || openErr != nil {
				watch.Stop()
				return openErr
			}
			continue // a member left meanwhile
		}
		ready, err := b.awaitReady(ctx, watch)
		if err != nil {
			watch.Stop()
			return err
		}
		if !ready {
			continue
		}
		watch.Stop()
		// On one connection the watch of a znode that does not exist fires
		// only when it is created. The znode may be gone already: kazoo's
		// members delete it when the first of them leaves.
		before := connection
		connection = b.s.Connection()
		var exists bool
		_, exists, watch, err = b.s.ExistsW(ctx, b.ready)
		if err != nil {
			return err
		}
		if exists || connection == before {
			watch.Stop()
			return b.inside(ctx)
		}
	}
}

// awaitReady waits for the watch on ready and watches our own znode meanwhile. It
// returns false when the caller must look for ready again.
func (b *DoubleBarrier) awaitReady(ctx context.Context, watch *session.Watch) (bool, error) {
	_, _, own, err := watchData(ctx, b.s, b.own)
	if err != nil {
		return false, err
	}
	if own == nil {
		return false, ErrLost
	}
	defer own.Stop()
	if err := b.s.WaitAny(ctx, watch, own); err != nil || watch.Fired() || own.Fired() {
		return watch.Fired(), err
	}
	_, ready, err := b.s.Exists(ctx, b.ready)
	return ready, err
}

// open creates ready if all those members are still there. It returns false when one
// of them is gone.
func (b *DoubleBarrier) open(ctx context.Context, members []string) (bool, error) {
	ops := make([]session.Op, 0, b.cfg.N+1)
	ops = append(ops, session.CheckOp(b.own, -1))
	for _, m := range members {
		if m != base(b.own) && len(ops) < b.cfg.N {
			ops = append(ops, session.CheckOp(child(b.cfg.Path, m), -1))
		}
	}
	ops = append(ops, session.CreateOp(b.ready, nil, session.Persistent))
	_, err := b.s.Multi(ctx, ops...)
	switch {
	case err == nil, errors.Is(err, session.ErrNodeExists):
		return true, nil
	case errors.Is(err, session.ErrNoNode):
		return false, nil
	case errors.Is(err, session.ErrUnknown) && ctx.Err() == nil:
		_, exists, lookErr := lookAgain(ctx, b.s, b.ready)
		return exists, lookErr
	}
	return false, err
}

// inside checks that we were still a member when the barrier opened.
func (b *DoubleBarrier) inside(ctx context.Context) error {
	_, exists, err := b.s.Exists(ctx, b.own)
	if err == nil && !exists {
		err = ErrLost
	}
	return err
}

// members returns the names of the members, in order.
func (b *DoubleBarrier) members(ctx context.Context) ([]string, error) {
	names, _, err := b.s.Children(ctx, b.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == readyName })
	slices.Sort(names)
	return names, err
}

// Leave returns when all members have left. It takes the hold that Enter returned,
// and ends it at once. When ctx ends first, Leave removes our member, which releases
// the rest.
func (b *DoubleBarrier) Leave(ctx context.Context, h *Hold) error {
	if !h.finish() {
		return fmt.Errorf("leave %s: %w", b.cfg.Path, ErrNotHeld)
	}
	if err := b.leave(ctx); err != nil {
		abandon(b.s, b.own)
		return fmt.Errorf("leave %s: %w", b.cfg.Path, err)
	}
	return nil
}

func (b *DoubleBarrier) leave(ctx context.Context) error {
	round, _, err := b.s.Exists(ctx, b.ready) // of our round, because our member is there
	if err != nil {
		return err
	}
	for {
		members, err := b.members(ctx)
		switch {
		case err != nil:
			return err
		case len(members) == 0: // also the last one is gone, and may have died before it ended the round
			return removeExactly(ctx, b.s, b.ready, round.Czxid)
		case len(members) == 1 && members[0] == base(b.own):
			_, err := b.s.Multi(ctx, session.DeleteOp(b.own, -1), session.DeleteOp(b.ready, -1))
			if err == nil || !isRace(err) {
				return err
			}
			if err := removeOwn(ctx, b.s, b.own); err != nil {
				return err
			}
			continue
		}
		await := members[len(members)-1]
		if members[0] != base(b.own) {
			await = members[0]
			if slices.Contains(members, base(b.own)) {
				err = removeOwn(ctx, b.s, b.own)
			}
			if err != nil {
				return err
			}
		}
		_, _, watch, err := watchData(ctx, b.s, child(b.cfg.Path, await))
		if err == nil && watch != nil {
			err = watch.Wait(ctx)
		}
		if err != nil {
			return err
		}
	}
}
