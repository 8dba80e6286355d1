package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/zkagent/zkagent/session"
)

// The semaphore: at most K holders.
//
//	<path>                                     data = K as text
//	<path>/locks/_c_<uuid>-lock-<sequence>     a lock, held while a permit is taken
//	<path>/leases/_c_<uuid>-lease-<sequence>   ephemeral sequential, one per permit
//
// and in kazoo's dialect
//
//	<path>                                     data = K as text
//	<path>-__lock__/<32 hex>__lock__<sequence> the lock
//	<path>/<32 hex>                            ephemeral, one per permit
//
// Steps (Apache Curator, InterProcessSemaphoreV2): take the lock, create a
// lease, wait until not more than K leases stand, give the lock back. Only the
// holder of the lock watches the leases, so one release wakes one contender.
//
// Guarantees: never more than K permits; permits in the order of arrival;
// contenders that disagree on K are refused instead of overcommitting. Curator's
// own semaphore does not look at the data of <path>; there K is by convention.

// SemaphoreConfig describes a semaphore.
type SemaphoreConfig struct {
	Path    string
	K       int    // number of permits, at least 1
	Dialect string // Curator (default) or Kazoo
	Data    []byte // what our lease says, by custom a host name
	Logger  *slog.Logger
}

// Semaphore hands out K permits. It may be used by many goroutines at once.
type Semaphore struct {
	s       *session.Session
	cfg     SemaphoreConfig
	lock    *Lock
	leases  string
	checked atomic.Bool // K stands in the znode, and is ours
}

// NewSemaphore returns a semaphore of the session. It does no I/O.
func NewSemaphore(s *session.Session, cfg SemaphoreConfig) *Semaphore {
	m := &Semaphore{s: s, cfg: cfg, leases: child(cfg.Path, "leases")}
	locks := child(cfg.Path, "locks")
	if cfg.Dialect == Kazoo {
		m.leases, locks = cfg.Path, cfg.Path+"-__lock__"
	}
	m.lock = NewLock(s, LockConfig{Path: locks, Dialect: cfg.Dialect, Data: cfg.Data, Logger: cfg.Logger})
	return m
}

// Acquire waits until a permit is ours. When ctx ends first its cause is
// returned and nothing is left behind.
func (m *Semaphore) Acquire(ctx context.Context) (*Hold, error) { return m.acquire(ctx, false) }

// TryAcquire takes a permit when one is free and nobody else is about to take
// it; otherwise the error matches ErrHeld.
func (m *Semaphore) TryAcquire(ctx context.Context) (*Hold, error) { return m.acquire(ctx, true) }

func (m *Semaphore) acquire(ctx context.Context, try bool) (*Hold, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	take := m.lock.Acquire
	if try {
		take = m.lock.TryAcquire
	}
	turn, err := take(ctx)
	if err != nil {
		return nil, fmt.Errorf("semaphore: %w", err)
	}
	h, err := m.lease(ctx, turn, try)
	rerr := turn.Release(ctx) // in the background when ctx has ended
	if err == nil && rerr != nil && !errors.Is(rerr, ErrNotHeld) {
		err = rerr
	}
	if err != nil {
		if h != nil {
			_ = h.Release(ctx) // the first error is told
		}
		return nil, fmt.Errorf("semaphore %s: %w", m.cfg.Path, err)
	}
	return h, nil
}

// lease creates our lease and waits until it is one of K. It is called with
// the lock held and gives up when the lock is lost: another may count then.
func (m *Semaphore) lease(ctx context.Context, turn *Hold, try bool) (*Hold, error) {
	path, stat, err := m.createLease(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.await(ctx, turn, base(path), try); err != nil {
		abandon(m.s, path)
		return nil, err
	}
	return newHold(ctx, m.s, m.leases, path, stat.Czxid, holdOptions{}), nil
}

func (m *Semaphore) createLease(ctx context.Context) (string, session.Stat, error) {
	if m.cfg.Dialect == Kazoo {
		path := child(m.leases, newHex())
		stat, err := createOwned(ctx, m.s, path, m.cfg.Data)
		return path, stat, err
	}
	return createContender(ctx, m.s, m.leases, naming{mark: "lease-"}, m.cfg.Data, nil)
}

// await waits until the leases, ours among them, are not more than K.
func (m *Semaphore) await(ctx context.Context, turn *Hold, own string, try bool) error {
	for {
		names, _, watch, err := m.s.ChildrenW(ctx, m.leases)
		if err != nil {
			return fmt.Errorf("list %s: %w", m.leases, err)
		}
		count, mine := m.count(names, own)
		switch {
		case !mine:
			err = ErrLost
		case turn.Err() != nil:
			err = turn.Err()
		case count > m.cfg.K && try:
			err = ErrHeld
		}
		if err != nil || count <= m.cfg.K {
			watch.Stop()
			return err
		}
		if err := m.awaitChange(ctx, turn, watch); err != nil {
			return err
		}
	}
}

func (m *Semaphore) awaitChange(ctx context.Context, turn *Hold, watch *session.Watch) error {
	defer watch.Stop()
	select {
	case <-watch.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-turn.Context().Done():
		return turn.Err()
	}
}

// count returns the number of leases, and whether ours is among them. In
// kazoo's layout every child is a lease.
func (m *Semaphore) count(names []string, own string) (int, bool) {
	count, mine := 0, false
	for _, name := range names {
		_, lease := ParseSequence(name, "lease-")
		if lease || m.cfg.Dialect == Kazoo {
			count++
		}
		mine = mine || name == own
	}
	return count, mine
}

// check makes sure, once, that the znode and we agree on K.
func (m *Semaphore) check(ctx context.Context) error {
	if m.checked.Load() {
		return nil
	}
	if m.cfg.K < 1 {
		return fmt.Errorf("semaphore %s: %d permits, at least one is needed: %w", m.cfg.Path, m.cfg.K, ErrFormat)
	}
	have, err := m.permits(ctx)
	if err != nil {
		return fmt.Errorf("semaphore %s: %w", m.cfg.Path, err)
	}
	if have != strconv.Itoa(m.cfg.K) {
		return &PermitsError{Path: m.cfg.Path, Want: m.cfg.K, Have: have}
	}
	m.checked.Store(true)
	return nil
}

// permits returns the text of K, which it writes when there is none yet. An
// empty znode is one that a client without the rule made.
func (m *Semaphore) permits(ctx context.Context) (string, error) {
	want := []byte(strconv.Itoa(m.cfg.K))
	for {
		data, stat, err := m.s.Get(ctx, m.cfg.Path)
		switch {
		case err == nil && len(data) > 0:
			return strings.TrimSpace(string(data)), nil
		case err == nil:
			_, err = m.s.Set(ctx, m.cfg.Path, want, stat.Version)
		case errors.Is(err, session.ErrNoNode):
			err = withParents(ctx, m.s, m.cfg.Path, func() error {
				_, _, createErr := m.s.Create(ctx, m.cfg.Path, want, session.Persistent)
				return createErr
			})
		}
		// Somebody else may have been first, or the reply was lost: the
		// next read tells.
		if err != nil && (ctx.Err() != nil || !isRace(err)) {
			return "", err
		}
	}
}

// isRace reports whether a write of create-once data lost, or may have won.
func isRace(err error) bool {
	return errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrBadVersion) ||
		errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrUnknown)
}
