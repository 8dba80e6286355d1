package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/zkagent/zkagent/internal/lists"
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
	if s = session.Usable(s, cfg.Path); err == nil {
		err = context.Cause(s.Context())
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
// again, behind all that wait, in the next session if need be, and runs fn again. It
// returns other errors as [session.Manager.Each] does. The Manager's Run must be running.
func WhileLocked(ctx context.Context, m *session.Manager, cfg LockConfig, fn func(context.Context, *Hold) error) error {
	return m.Each(ctx, func(ctx context.Context, s *session.Session) error {
		return NewLock(session.Usable(s, cfg.Path, fn != nil), cfg).while(ctx, fn)
	})
}

// while takes the lock and runs fn, again when its znode was deleted or its hold was
// suspended.
func (l *Lock) while(ctx context.Context, fn func(context.Context, *Hold) error) error {
	for {
		hold, err := l.Acquire(ctx)
		ended := err
		if err == nil {
			err = hold.run(ctx, fn)
			ended = hold.Err() // ErrReleased: fn failed before the end
		}
		if err == nil || ctx.Err() != nil || !errors.Is(ended, ErrLost) && !errors.Is(ended, session.ErrSuspended) {
			return err
		}
	}
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

// The read-write lock.
//
// Steps (Hunt and others, Read/Write Locks; ZooKeeper Recipes, "Shared Locks"):
// a writer waits for its nearest predecessor of either kind, a reader for the
// nearest writer before it. Both kinds share the parent's counter.

// RWLock is a lock for one writer or many readers.
type RWLock struct {
	read, write *Lock
}

// NewRWLock returns a read-write lock of the session. It does no I/O.
func NewRWLock(s *session.Session, cfg LockConfig) *RWLock {
	return &RWLock{newLock(s, cfg, readNames, kazooReadNames), newLock(s, cfg, writeNames, kazooNames)}
}

// Reader returns the read lock by itself, for a [MultiLock].
func (l *RWLock) Reader() *Lock { return l.read }

// Writer returns the write lock by itself.
func (l *RWLock) Writer() *Lock { return l.write }

// RLock takes the read lock. It waits until no writer precedes us.
func (l *RWLock) RLock(ctx context.Context) (*Hold, error) { return l.read.Acquire(ctx) }

// TryRLock is RLock, but returns ErrHeld instead of waiting.
func (l *RWLock) TryRLock(ctx context.Context) (*Hold, error) { return l.read.TryAcquire(ctx) }

// Lock takes the write lock. It waits until no contender precedes us. Under the context
// of a read lock of the same path it returns ErrUpgrade.
func (l *RWLock) Lock(ctx context.Context) (*Hold, error) { return l.write.Acquire(ctx) }

// TryLock is Lock, but returns ErrHeld instead of waiting.
func (l *RWLock) TryLock(ctx context.Context) (*Hold, error) { return l.write.TryAcquire(ctx) }

// Downgrade turns a write lock into a read lock in one step. The reader takes the
// writer's place in the line (as Curator's readers inside a writer do since 5.5), so it
// precedes every waiting writer. The reader has the writer's fence. When Downgrade returns nil, the write hold has ended.
// When it returns an error, the write hold continues. The exception is an error that
// matches session.ErrUnknown: both holds are then given up, and the context of the
// write hold shows its end.
func (l *RWLock) Downgrade(ctx context.Context, w *Hold) (*Hold, error) {
	if err := w.Err(); err != nil {
		return nil, fmt.Errorf("downgrade %s: %w: %w", w.path, ErrNotHeld, err)
	}
	c, ok := parseContender(base(w.path))
	if !ok || c.shared {
		return nil, fmt.Errorf("downgrade %s: not a write lock: %w", w.path, ErrNotHeld)
	}
	head, _, _ := splitSequence(c.name)
	n := l.read.participants.naming
	path := child(l.read.cfg.Path, n.unique()+n.mark+c.name[len(head):]) // with the writer's number
	stat, err := replaceOwn(ctx, l.read.s, w.path, path, l.read.cfg)
	if err != nil {
		return nil, fmt.Errorf("downgrade: %w", err)
	}
	opts := l.read.opts
	opts.fence = w.fence // a writer that waits has a larger one, but an older znode than ours
	r := newHold(ctx, l.read.s, l.read.cfg.Path, path, stat.Czxid, opts)
	w.finish()
	return r, nil
}

// replaceOwn replaces a znode of ours with a new ephemeral one, whose name no other
// client uses. After a lost reply it looks for the new znode: if that exists, the
// replacement was applied.
func replaceOwn(ctx context.Context, s *session.Session, old, path string, cfg LockConfig) (session.Stat, error) {
	for {
		results, err := s.Multi(ctx,
			session.DeleteOp(old, -1),
			session.CreateOp(path, cfg.Data, session.Ephemeral, cfg.ACL...))
		if err != nil && !errors.Is(err, session.ErrUnknown) {
			return session.Stat{}, err
		}
		if err == nil && len(results) == 2 && results[1].Stat.Czxid != 0 {
			return results[1].Stat, nil
		}
		stat, ok, ferr := lookAgain(ctx, s, path)
		if ferr != nil {
			abandon(s, path)
			return session.Stat{}, fmt.Errorf("%w: %w", session.ErrUnknown, ferr)
		}
		if ok && stat.EphemeralOwner == s.ID() {
			return stat, nil
		}
	}
}

// Revocable locks.
//
//	data of the holder's znode = __REVOKE__    "please release it"
//
// Steps (ZooKeeper Recipes, "Recoverable Shared Locks"; Apache Curator's
// InterProcessMutex.makeRevocable): a requester sets the data of the first znode in
// line. The holder watches its own znode from the moment it holds the lock. It also
// reads the znode then, so it sees an earlier request.

// Revoke asks the holder of the lock to release it. It returns nil when the lock is
// free. Only a revocable holder notices the request.
func (l *Lock) Revoke(ctx context.Context) error {
	if l.err != nil {
		return fmt.Errorf("revoke %s: %w", l.cfg.Path, l.err)
	}
	// The caller may know of the holder from another client. Sync, so that a server
	// that lags does not answer that the lock is free.
	if err := l.s.Sync(ctx, l.cfg.Path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("revoke: %w", err)
	}
	list, err := Contenders(ctx, l.s, l.cfg.Path)
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	for _, c := range list {
		if !c.Holder {
			break
		}
		err := untilKnown(ctx, func() error {
			_, err := l.s.Set(ctx, c.Path, []byte(revokeData), -1)
			return err
		})
		if err != nil && !errors.Is(err, session.ErrNoNode) { // it left by itself
			return fmt.Errorf("revoke %s: %w", c.Path, err)
		}
	}
	return nil
}

// Revoke asks all holders of the lock, the writer or the readers, to release it.
func (l *RWLock) Revoke(ctx context.Context) error { return l.write.Revoke(ctx) }

// The multi-lock: several locks held together. It makes no znodes of its own.
//
// Steps (Apache Curator, "Multi Shared Lock"): acquire the locks one after another in
// the order of their paths; if one fails, release those that are held.

// Acquirer is one part of a multi-lock: a [Lock], the reader or writer of an
// [RWLock], or a [Semaphore].
type Acquirer interface {
	Acquire(ctx context.Context) (*Hold, error)
	TryAcquire(ctx context.Context) (*Hold, error)
	// Path returns the path that contenders share.
	Path() string
}

// MultiLock is several locks that are held together. All must be of one session.
type MultiLock struct{ locks []Acquirer }

// NewMultiLock returns a multi-lock over locks of distinct paths. It does no I/O.
func NewMultiLock(locks ...Acquirer) *MultiLock {
	missing := func(l Acquirer) bool { // also a nil *Lock
		v := reflect.ValueOf(l)
		return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
	}
	if slices.ContainsFunc(locks, missing) {
		return &MultiLock{}
	}
	sorted := slices.SortedFunc(slices.Values(locks), func(a, b Acquirer) int {
		return cmp.Compare(a.Path(), b.Path())
	})
	return &MultiLock{locks: sorted}
}

// MultiHold is several locks held. Its context ends when one of them is lost.
type MultiHold struct {
	holds  []*Hold
	ctx    context.Context // ends with the hold
	cancel context.CancelCauseFunc
}

// Acquire waits until all locks are ours. On an error it holds none.
func (m *MultiLock) Acquire(ctx context.Context) (*MultiHold, error) {
	return m.acquire(ctx, Acquirer.Acquire)
}

// TryAcquire takes the locks if all are free. Otherwise it takes none, and the error
// matches ErrHeld.
func (m *MultiLock) TryAcquire(ctx context.Context) (*MultiHold, error) {
	return m.acquire(ctx, Acquirer.TryAcquire)
}

func (m *MultiLock) acquire(ctx context.Context, one func(Acquirer, context.Context) (*Hold, error)) (*MultiHold, error) {
	if len(m.locks) == 0 {
		return nil, fmt.Errorf("multi-lock: %w: it has no locks, or one is nil", ErrFormat)
	}
	var holds []*Hold
	for i, l := range m.locks {
		if i > 0 && l.Path() == m.locks[i-1].Path() {
			return nil, fmt.Errorf("multi-lock: %s is named twice, and would wait for itself: %w", l.Path(), ErrReentrant)
		}
	}
	for _, l := range m.locks {
		h, err := one(l, ctx)
		if err == nil {
			// We may lose an earlier lock while we wait for a later one.
			if i := slices.IndexFunc(holds, func(h *Hold) bool { return h.Err() != nil }); i >= 0 {
				err = holds[i].Err()
				holds = append(holds, h)
			}
		}
		if err != nil {
			_ = releaseAll(ctx, holds) // return the first error
			return nil, err
		}
		holds = append(holds, h)
	}
	return newMultiHold(ctx, holds), nil
}

func newMultiHold(ctx context.Context, holds []*Hold) *MultiHold {
	chain, _ := ctx.Value(heldKey{}).(*heldChain)
	for _, h := range holds {
		link := *h.ctx.Value(heldKey{}).(*heldChain)
		link.outer, chain = chain, &link
	}
	own, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), heldKey{}, chain))
	m := &MultiHold{holds: holds, ctx: own, cancel: cancel}
	for _, h := range holds {
		context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	}
	return m
}

// Context returns a context that ends with the first of the locks, with its cause.
func (m *MultiHold) Context() context.Context { return m.ctx }

// Fences returns the fencing tokens in the order of the locks' paths.
func (m *MultiHold) Fences() []int64 {
	return lists.Map(m.holds, func(h *Hold) int64 { return h.fence })
}

// Guards returns operations that make a multi fail when one of the locks is gone.
func (m *MultiHold) Guards() []session.Op {
	return lists.Map(m.holds, (*Hold).Guard)
}

// Release releases all locks, the last acquired first, and returns all errors.
func (m *MultiHold) Release(ctx context.Context) error {
	m.cancel(ErrReleased)
	return releaseAll(ctx, m.holds)
}

func releaseAll(ctx context.Context, holds []*Hold) error {
	var errs []error
	for _, h := range slices.Backward(holds) {
		errs = append(errs, h.Release(ctx))
	}
	return errors.Join(errs...)
}
