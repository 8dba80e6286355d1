package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/zkagent/zkagent/session"
)

// The lock.
//
// Steps (ZooKeeper Recipes, "Locks"; Hunt and others, Simple Locks without Herd
// Effect): create; list; when we are first, the lock is ours; otherwise wait for the
// nearest predecessor and list again. An uncontended lock costs three requests,
// including the delete.

// LockConfig describes a lock.
type LockConfig struct {
	Path    string // its children are the contenders
	Dialect string // Curator (default) or Kazoo
	// Data is the data of our znode, for people and other clients: by custom a
	// host name.
	Data []byte
	// Revocable makes holds watch for requests to release the lock; see
	// [Lock.Revoke].
	Revocable bool
	// ACL is for our znodes; empty: the session's ACL.
	ACL    []session.ACL
	Logger *slog.Logger // nil: discard
}

// Lock is an exclusive lock. Many goroutines may use it at once; each contends by
// itself. It is not reentrant.
type Lock struct {
	s            *session.Session
	cfg          LockConfig
	participants *Participants
	opts         holdOptions
	err          error // error of the configuration, which Acquire returns
}

// NewLock returns a lock of the session. It does no I/O.
func NewLock(s *session.Session, cfg LockConfig) *Lock {
	return newLock(s, cfg, lockNames, kazooNames)
}

func newLock(s *session.Session, cfg LockConfig, curator, kazoo naming) *Lock {
	n, err := inDialect(cfg.Dialect, curator, kazoo)
	if err == nil {
		err = session.ValidatePath(cfg.Path)
	}
	l := &Lock{
		s: s, cfg: cfg, err: err,
		participants: &Participants{Path: cfg.Path, Logger: cfg.Logger, naming: n, acl: cfg.ACL},
		opts:         holdOptions{shared: n.shared, now: cfg.Revocable},
	}
	if n.kind != "" {
		l.opts.disputed = func(ctx context.Context) error {
			names, _, err := s.Children(ctx, cfg.Path)
			if err == nil {
				err = otherKind(cfg.Path, n.kind, names)
			}
			return err
		}
	}
	return l
}

// Acquire waits until the lock is ours. When ctx ends first, it returns the cause and
// leaves nothing behind. The hold does not end with ctx.
func (l *Lock) Acquire(ctx context.Context) (*Hold, error) {
	return l.acquire(ctx, func(p *Participant) error { return p.Wait(ctx) })
}

// TryAcquire takes the lock if it is free. Otherwise it returns an error that matches
// ErrHeld.
func (l *Lock) TryAcquire(ctx context.Context) (*Hold, error) {
	return l.acquire(ctx, func(p *Participant) error {
		first, err := p.First(ctx)
		if err == nil && !first {
			err = ErrHeld
		}
		return err
	})
}

// Path returns the path whose children contend.
func (l *Lock) Path() string { return l.cfg.Path }

func (l *Lock) acquire(ctx context.Context, wait func(*Participant) error) (*Hold, error) {
	if l.err != nil {
		return nil, fmt.Errorf("lock %s: %w", l.cfg.Path, l.err)
	}
	if err := waitsForItself(ctx, l.s, l.cfg.Path, l.opts.shared); err != nil {
		return nil, err
	}
	participant, err := l.participants.Join(ctx, l.s, l.cfg.Data)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := wait(participant); err != nil {
		participant.Abandon()
		return nil, fmt.Errorf("lock %s: %w", l.cfg.Path, err)
	}
	return newHold(ctx, l.s, l.cfg.Path, participant.path, participant.Fence(), l.opts), nil
}

// WhileLocked takes a lock, runs fn and releases the lock. The context of fn ends with
// the hold, and with ctx. fn returns nil when its work is done: WhileLocked then returns
// nil. When fn returns an error after the end of its hold, WhileLocked takes the lock
// again, in the next session if need be, and runs fn again. It returns any other error
// of fn, and what [session.Manager.Each] returns. The Manager's Run must be running.
func WhileLocked(ctx context.Context, m *session.Manager, cfg LockConfig, fn func(context.Context, *Hold) error) error {
	return m.Each(ctx, func(ctx context.Context, s *session.Session) error {
		lock := NewLock(s, cfg)
		for {
			hold, err := lock.Acquire(ctx)
			if err != nil {
				return err
			}
			err = hold.run(ctx, fn)
			if err == nil || ctx.Err() != nil || !errors.Is(err, ErrLost) {
				return err
			}
		}
	})
}

// run calls fn and releases the hold. It returns why the hold ended if it ended before
// a fn that failed.
func (h *Hold) run(ctx context.Context, fn func(context.Context, *Hold) error) error {
	held, cancel := context.WithCancelCause(h.Context())
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	err := fn(held, h)
	ended := h.Err()
	_ = h.Release(context.WithoutCancel(ctx)) // work that is done stays done; the delete continues in the background
	if err != nil && ended != nil {
		return ended
	}
	return err
}
