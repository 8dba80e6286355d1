package recipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
)

// The semaphore: clients hold at most K permits.
//
// If K comes from a counter, the data is "counter <its path>" instead.
//
// Steps (Apache Curator, InterProcessSemaphoreV2): take the lock, create the leases,
// wait until at most K leases exist, release the lock. Only the holder of the lock
// watches the leases, so one release wakes one contender. Each contender reads K again
// when it is its turn.

// SemaphoreConfig describes a semaphore.
type SemaphoreConfig struct {
	Path string // see above; the first contender creates it
	K    int    // number of permits, at least 1
	// Counter is the path of a counter in the layout of Curator's SharedCount.
	// Its value is K, and all contenders follow it. Leave K 0 then.
	Counter string
	// Text is the data of <path> instead of K. Permits computes K from that text at
	// each take. Contenders may disagree on the text: the one in <path> counts, and
	// a contender writes its own when no permit is held. Leave K 0 then.
	Text    string
	Permits func(ctx context.Context, text string) (int, error)
	Dialect string       // Curator (default) or Kazoo
	Data    []byte       // of our leases, by custom a host name
	Logger  *slog.Logger // nil: discard
}

// Semaphore hands out K permits. Many goroutines may use it at once.
type Semaphore struct {
	s      *session.Session
	cfg    SemaphoreConfig
	lock   *Lock
	leases string
}

// NewSemaphore returns a semaphore of the session. It does no I/O.
func NewSemaphore(s *session.Session, cfg SemaphoreConfig) *Semaphore {
	s = session.Usable(s, cfg.Path)
	m := &Semaphore{s: s, cfg: cfg, leases: child(cfg.Path, "leases")}
	locks := child(cfg.Path, "locks")
	if cfg.Dialect == Kazoo {
		m.leases, locks = cfg.Path, cfg.Path+"-__lock__"
	}
	m.lock = NewLock(s, LockConfig{Path: locks, Dialect: cfg.Dialect, Data: cfg.Data, Logger: cfg.Logger})
	return m
}

// Path returns the path of the semaphore.
func (m *Semaphore) Path() string { return m.cfg.Path }

// Acquire waits until a permit is ours. When ctx ends first, it returns the cause and
// leaves nothing behind.
func (m *Semaphore) Acquire(ctx context.Context) (*Hold, error) {
	return onlyHold(m.acquire(ctx, 1, false))
}

// TryAcquire takes a permit if one is free. Otherwise the error matches ErrHeld.
func (m *Semaphore) TryAcquire(ctx context.Context) (*Hold, error) {
	return onlyHold(m.acquire(ctx, 1, true))
}

// AcquireN waits until n permits are ours, all at once.
func (m *Semaphore) AcquireN(ctx context.Context, n int) (*MultiHold, error) {
	return m.many(ctx, n, false)
}

// TryAcquireN takes n permits if n are free. Otherwise it takes none, and the
// error matches ErrHeld.
func (m *Semaphore) TryAcquireN(ctx context.Context, n int) (*MultiHold, error) {
	return m.many(ctx, n, true)
}

func (m *Semaphore) many(ctx context.Context, n int, try bool) (*MultiHold, error) {
	holds, err := m.acquire(ctx, n, try)
	if err != nil {
		return nil, err
	}
	return newMultiHold(ctx, holds), nil
}

func onlyHold(holds []*Hold, err error) (*Hold, error) {
	if err != nil {
		return nil, err
	}
	return holds[0], nil
}

func (m *Semaphore) acquire(ctx context.Context, n int, try bool) ([]*Hold, error) {
	if m.cfg.Counter == "" && m.cfg.Permits == nil && m.cfg.K < 1 || n < 1 {
		return nil, fmt.Errorf("semaphore %s: %w: K is %d and %d permits are wanted; both are 1 or more", m.cfg.Path, ErrFormat, m.cfg.K, n)
	}
	if err := m.agree(ctx); err != nil {
		return nil, fmt.Errorf("semaphore %s: %w", m.cfg.Path, err)
	}
	turn, err := m.lock.participants.Join(ctx, m.s, m.cfg.Data)
	if err != nil {
		return nil, fmt.Errorf("semaphore %s: %w", m.cfg.Path, err)
	}
	if try {
		err = m.tryTurn(ctx, turn, n)
	} else {
		err = turn.Wait(ctx)
	}
	var holds []*Hold
	if err == nil {
		holds, err = m.take(ctx, turn, n, try)
	}
	if lerr := turn.Leave(ctx); lerr != nil {
		turn.Abandon() // in the background, because ctx may have ended
	}
	if err != nil {
		return nil, fmt.Errorf("semaphore %s: %w", m.cfg.Path, err)
	}
	return holds, nil
}

// tryTurn waits for our turn to take the lock, but only for contenders that are about to
// take a free permit. While all permits are held, it returns ErrHeld.
func (m *Semaphore) tryTurn(ctx context.Context, turn *Participant, n int) error {
	for {
		pred, err := turn.ahead(ctx)
		if err != nil || pred == "" {
			return err
		}
		_, _, watch, err := watchData(ctx, m.s, child(turn.participants.Path, pred))
		if err != nil {
			return err
		}
		if watch == nil {
			continue
		}
		k, permits, err := m.permitsW(ctx)
		permits.Stop()
		if err != nil {
			watch.Stop()
			return err
		}
		list, leases, err := m.s.ListW(ctx, m.leases)
		if err == nil && m.count(list.Names)+n > k {
			err = ErrHeld
		}
		if err == nil {
			err = m.s.WaitAny(ctx, watch, leases)
		}
		watch.Stop()
		leases.Stop()
		if err != nil {
			return err
		}
	}
}

// take creates our leases and waits until they are among the K. Call it when it is our
// turn. It gives up when our znode is lost, because then another contender may count.
func (m *Semaphore) take(ctx context.Context, turn *Participant, n int, try bool) ([]*Hold, error) {
	var own []lease
	var err error
	for len(own) < n && err == nil {
		var l lease
		if m.cfg.Dialect == Kazoo {
			l.path, l.stat, err = m.s.CreateUnique(ctx, m.leases, kazooNames.unique(), "", m.cfg.Data, session.Ephemeral)
		} else {
			l.path, l.stat, err = createContender(ctx, m.s, m.leases, naming{mark: "lease-"}, m.cfg.Data, nil)
		}
		if err == nil {
			own = append(own, l)
		}
	}
	if err == nil {
		err = m.await(ctx, turn, own, try)
	}
	if err != nil {
		for _, l := range own {
			abandon(m.s, l.path)
		}
		return nil, err
	}
	holds := lists.Map(own, func(l lease) *Hold {
		return newHold(ctx, m.s, m.leases, l.path, l.stat.Czxid, holdOptions{disputed: m.undisputed})
	})
	return holds, nil
}

// lease is one of our permits.
type lease struct {
	path string
	stat session.Stat
}

// await waits until there are at most K leases, ours among them.
func (m *Semaphore) await(ctx context.Context, turn *Participant, own []lease, try bool) error {
	// No other contender takes a permit while we are first. From here on we watch
	// our znode, so its loss ends the wait.
	if err := turn.prove(ctx); err != nil {
		return err
	}
	for {
		k, permits, err := m.permitsW(ctx)
		if err != nil {
			return err
		}
		names, _, leases, err := m.s.ChildrenW(ctx, m.leases)
		if err == nil && m.cfg.Permits != nil && m.count(names) == len(own) {
			k, err = m.takeOver(ctx, turn, own[0])
		}
		if err == nil {
			count := m.count(names)
			switch {
			case slices.ContainsFunc(own, func(l lease) bool { return !slices.Contains(names, base(l.path)) }):
				err = ErrLost
			case turn.own.Fired():
				err = turn.prove(ctx)
			case len(own) > k:
				err = fmt.Errorf("%d permits wanted of %d: %w", len(own), k, ErrRange)
			case count > k && try:
				err = ErrHeld
			}
			if err == nil && count <= k {
				permits.Stop()
				leases.Stop()
				return nil
			}
		}
		if err == nil {
			err = m.s.WaitAny(ctx, leases, permits, turn.own)
		}
		permits.Stop()
		leases.Stop()
		if err != nil {
			return err
		}
	}
}

// takeOver puts our text in force if no other client holds a permit. Our lease keeps the
// path, so its version belongs to the znode that was read.
func (m *Semaphore) takeOver(ctx context.Context, turn *Participant, own lease) (int, error) {
	data, stat, err := m.s.Get(ctx, m.cfg.Path)
	if err == nil && string(data) != m.cfg.Text {
		_, err = m.s.Multi(ctx, session.CheckOp(turn.path, -1), session.CheckOp(own.path, -1), session.SetOp(m.cfg.Path, []byte(m.cfg.Text), stat.Version))
	}
	if err != nil {
		return 0, err
	}
	return m.cfg.Permits(ctx, m.cfg.Text)
}

func (m *Semaphore) count(names []string) int {
	count := 0
	for _, name := range names {
		if m.isLease(name) {
			count++
		}
	}
	return count
}

// isLease reports whether a child is a lease. In kazoo's layout every child is one.
func (m *Semaphore) isLease(name string) bool {
	_, lease := ParseSequence(name, "lease-")
	return lease || m.cfg.Dialect == Kazoo
}

// agree marks the path as a semaphore, and checks that no client uses it as a lock. If
// one does, agree removes the mark again: otherwise the mark would keep out all locks
// from then on.
func (m *Semaphore) agree(ctx context.Context) error {
	wrote, err := m.declare(ctx)
	if err != nil {
		return err
	}
	err = m.undisputed(ctx)
	if errors.Is(err, session.ErrNoNode) { // the server has removed the empty path
		return m.agree(ctx)
	}
	if errors.Is(err, ErrKind) && wrote != noVersion {
		inBackground(m.s, func(ctx context.Context) error { return m.takeBack(ctx, wrote) })
	}
	return err
}

// noVersion stands for no version of a znode's data.
const noVersion = -1

// takeBack empties the data that declare wrote, unless the semaphore is in use. In Curator's
// layout no permit is held while there are no leases. In kazoo's, where the leases are
// children of the path, takeBack stands first in line meanwhile, so no client takes one.
func (m *Semaphore) takeBack(ctx context.Context, version int32) error {
	ops := []session.Op{session.CreateOp(m.leases, nil, session.Persistent), session.DeleteOp(m.leases, -1)}
	if m.leases == m.cfg.Path {
		turn, err := m.lock.participants.Join(ctx, m.s, m.cfg.Data)
		if err != nil {
			return err
		}
		defer turn.Abandon()
		first, err := turn.First(ctx)
		if err != nil || !first {
			return err
		}
		names, _, err := m.s.Children(ctx, m.leases)
		if err != nil || slices.ContainsFunc(names, kazooLease.MatchString) {
			return err
		}
		ops = []session.Op{session.CheckOp(turn.path, -1)}
	}
	_, err := m.s.Multi(ctx, append(ops, session.SetOp(m.cfg.Path, nil, version))...)
	return err
}

// undisputed returns an error when a client uses the path as a lock, or as a semaphore of
// the other layout.
func (m *Semaphore) undisputed(ctx context.Context) error {
	names, _, err := m.s.Children(ctx, m.cfg.Path)
	if err != nil {
		return fmt.Errorf("list %s: %w", m.cfg.Path, err)
	}
	kind := kindCurators
	if m.cfg.Dialect == Kazoo {
		kind = kindKazoos
	}
	return otherKind(m.cfg.Path, kind, names)
}

// text returns what the data of the path should be.
func (m *Semaphore) text() string {
	if m.cfg.Permits != nil {
		return m.cfg.Text
	}
	if m.cfg.Counter != "" {
		return "counter " + m.cfg.Counter
	}
	return strconv.Itoa(m.cfg.K)
}

// permitsW returns K, after a check that the contenders agree on it, with a watch that fires
// when K may have changed.
func (m *Semaphore) permitsW(ctx context.Context) (int, *session.Watch, error) {
	data, _, err := m.s.Get(ctx, m.cfg.Path)
	if err != nil {
		return 0, nil, err
	}
	if len(data) == 0 { // a refused contender took it back
		if err := m.agree(ctx); err != nil {
			return 0, nil, err
		}
		return m.permitsW(ctx)
	}
	have := strings.TrimSpace(string(data))
	if m.cfg.Permits != nil {
		k, err := m.cfg.Permits(ctx, have)
		return k, nil, err
	}
	if have != m.text() {
		return 0, nil, &PermitsError{Path: m.cfg.Path, Want: m.cfg.K, Have: have}
	}
	if m.cfg.Counter == "" {
		return m.cfg.K, nil, nil
	}
	c := NewCounter(m.s, CounterConfig{Path: m.cfg.Counter, Dialect: CounterShared})
	data, _, watch, err := m.s.GetW(ctx, m.cfg.Counter)
	var k int64
	if err == nil {
		k, err = c.decode(data)
	}
	if err != nil {
		watch.Stop()
		return 0, nil, fmt.Errorf("permits of the counter %s: %w", m.cfg.Counter, err)
	}
	return int(k), watch, nil
}

// declare writes K, or its source, into a path that does not have it yet. It returns
// the version that it wrote, or noVersion when the path had it. An empty znode comes
// from a client that does not follow this rule.
func (m *Semaphore) declare(ctx context.Context) (int32, error) {
	want, wrote := []byte(m.text()), int32(noVersion)
	for {
		data, stat, err := m.s.Get(ctx, m.cfg.Path)
		switch {
		case err == nil && len(data) > 0:
			if have := strings.TrimSpace(string(data)); have != m.text() && m.cfg.Permits == nil {
				return noVersion, &PermitsError{Path: m.cfg.Path, Want: m.cfg.K, Have: have}
			}
			if stat.Version != wrote {
				wrote = noVersion
			}
			return wrote, nil
		case err == nil:
			// A semaphore that is refused must not mark the path of a lock.
			if err = m.undisputed(ctx); err == nil {
				wrote = stat.Version + 1
				_, err = m.s.Set(ctx, m.cfg.Path, want, stat.Version)
			}
		case errors.Is(err, session.ErrNoNode):
			wrote = 0
			err = withContainers(ctx, m.s, m.cfg.Path, func() error {
				_, _, createErr := m.s.Create(ctx, m.cfg.Path, want, session.Container)
				if errors.Is(createErr, session.ErrUnimplemented) {
					_, _, createErr = m.s.Create(ctx, m.cfg.Path, want, session.Persistent)
				}
				return createErr
			})
		}
		// Another client may have been first, or the reply was lost. The next
		// read shows which.
		if err != nil && (ctx.Err() != nil || !isRace(err)) {
			return noVersion, err
		}
	}
}

// Participants returns the holders of permits, the oldest first.
func (m *Semaphore) Participants(ctx context.Context) ([]Contender, error) {
	list, err := contenders(ctx, m.s, m.leases, m.isLease)
	if err != nil {
		return nil, fmt.Errorf("participants of semaphore %s: %w", m.cfg.Path, err)
	}
	for i := range list {
		list[i].Holder = true
	}
	return list, nil
}

// isRace reports whether a write of create-once data lost, or may have won.
func isRace(err error) bool {
	return errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrBadVersion) ||
		errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrUnknown)
}
