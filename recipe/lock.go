package recipe

import (
	"context"
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
	// ACL is for our znodes; empty: that of the session.
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
