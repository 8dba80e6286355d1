package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// The double barrier: N members begin together and end together.
//
//	<path>/<id>     ephemeral, one per member
//	<path>/ready    persistent, made when the members are N
//
// Steps (ZooKeeper Recipes, "Double Barriers"; the layout of Apache Curator and
// kazoo). To enter, a member watches whether ready exists, creates its znode, and
// counts the members, without ready. It creates ready when there are N; otherwise it
// waits for ready. To leave, the member with the lowest name waits for the highest.
// The others delete their znodes and wait for the lowest. The last one deletes ready.
//
// Guarantees: one multi checks N members and creates ready, so members enter only
// if N were there in one instant. A member that dies inside releases the rest. A
// member that gives up removes itself. Not guaranteed: that the path can be used
// again. One path is one round, because a leftover ready lets members of Curator and
// kazoo enter at once. Use another path for the next round, by custom
// <path>/<round>. More than N members may enter; all of them leave together.

// DoubleBarrierConfig describes a double barrier.
type DoubleBarrierConfig struct {
	Path string // of one round; its children are the members
	N    int    // members that begin together
	// ID names our member; unique among the members. Empty: a GUID.
	ID   string
	Data []byte // what our znode says, by custom a host name
}

// DoubleBarrier lets N members begin together and end together. Each member has a
// DoubleBarrier of its own.
type DoubleBarrier struct {
	s          *session.Session
	cfg        DoubleBarrierConfig
	own, ready string
	czxid      int64 // of our member; 0: not joined
}

const readyName = "ready"

// NewDoubleBarrier returns one member of a double barrier. It does no I/O.
func NewDoubleBarrier(s *session.Session, cfg DoubleBarrierConfig) *DoubleBarrier {
	if cfg.ID == "" {
		cfg.ID = uuid.NewString()
	}
	return &DoubleBarrier{s: s, cfg: cfg, own: child(cfg.Path, cfg.ID), ready: child(cfg.Path, readyName)}
}

// Enter returns when N members are inside. It returns ErrRound when the round began
// before we came. When ctx ends first, Enter removes our member.
func (b *DoubleBarrier) Enter(ctx context.Context) (*Hold, error) {
	if b.cfg.N < 1 || b.cfg.ID == readyName {
		return nil, fmt.Errorf("enter %s: %d members, id %q: %w", b.cfg.Path, b.cfg.N, b.cfg.ID, ErrFormat)
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
	b.czxid = stat.Czxid
	if err := b.await(ctx, watch, connection); err != nil {
		abandonExactly(b.s, b.own, b.czxid)
		return nil, fmt.Errorf("enter %s: %w", b.cfg.Path, err)
	}
	return newHold(ctx, b.s, b.cfg.Path, b.own, stat.Czxid, holdOptions{fixed: true}), nil
}

func (b *DoubleBarrier) join(ctx context.Context) (session.Stat, error) {
	var stat session.Stat
	err := withContainers(ctx, b.s, b.own, func() error {
		var err error
		stat, err = createOwned(ctx, b.s, b.own, b.cfg.Data)
		return err
	})
	return stat, err
}

// await waits until ready stands, and creates it when the members are N.
func (b *DoubleBarrier) await(ctx context.Context, watch *session.Watch, connection uint64) error {
	for {
		members, err := b.members(ctx)
		if err != nil || !slices.Contains(members, b.cfg.ID) {
			watch.Stop()
			return errors.Join(err, lostUnless(err))
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
	own, _, err := watchData(ctx, b.s, b.own)
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

// lostUnless returns ErrLost when there is no other error.
func lostUnless(err error) error {
	if err == nil {
		return ErrLost
	}
	return nil
}

// open creates ready if all those members are still there. It returns false when one
// of them is gone.
func (b *DoubleBarrier) open(ctx context.Context, members []string) (bool, error) {
	ops := make([]session.Op, 0, b.cfg.N+1)
	ops = append(ops, session.CheckOp(b.own, -1))
	for _, m := range members {
		if m != b.cfg.ID && len(ops) < b.cfg.N {
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
	stat, exists, err := b.s.Exists(ctx, b.own)
	if err == nil && (!exists || stat.Czxid != b.czxid) {
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
		abandonExactly(b.s, b.own, b.czxid)
		return fmt.Errorf("leave %s: %w", b.cfg.Path, err)
	}
	return nil
}

func (b *DoubleBarrier) leave(ctx context.Context) error {
	for {
		members, err := b.members(ctx)
		if err != nil {
			return err
		}
		if len(members) == 0 || len(members) == 1 && members[0] == b.cfg.ID {
			if err = removeExactly(ctx, b.s, b.own, b.czxid); err != nil {
				return err
			}
			return removeOwn(ctx, b.s, b.ready)
		}
		await := members[len(members)-1]
		if members[0] != b.cfg.ID {
			await = members[0]
			if slices.Contains(members, b.cfg.ID) {
				if err = removeExactly(ctx, b.s, b.own, b.czxid); err != nil {
					return err
				}
			}
		}
		watch, _, err := watchData(ctx, b.s, child(b.cfg.Path, await))
		if err != nil {
			return err
		}
		if watch == nil {
			continue
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}
