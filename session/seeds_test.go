package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// TestSeeds writes, watches and holds in one session after the other, in virtual
// time under random faults. The invariants:
//
//   - what a write says of itself is so: done, not done, or unknown;
//   - a protected create leaves one znode when it succeeds and none when not;
//   - a reader that waits by watches sees the last change;
//   - while a session is held, the server has it, unless a test has ended it there;
//   - when the faults are over there is a session, and its end takes seconds.
func TestSeeds(t *testing.T) {
	testhelp.Seeds(t, 3*time.Second, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			(&sim{t: t, srv: srv, rng: rand.New(rand.NewPCG(seed, 3)), silent: seed%3 == 0, terminated: map[int64]bool{}}).run()
		})
	})
}

// sim is one simulation.
type sim struct {
	t   *testing.T
	srv *memzk.Server
	rng *rand.Rand
	// silent lets the server forget a session when its client comes back. When
	// that strikes is not known here, so then nothing is said of the lease.
	silent bool

	mu         sync.Mutex     // guards what follows
	terminated map[int64]bool // sessions that the server ended before their time
	seen       string         // what the watcher read last
}

func (m *sim) run() {
	m.must(m.srv.Create("/w", nil))
	m.must(m.srv.Create("/p", nil))
	cfg := memConfig(m.srv)
	cfg.Servers = []string{"a:2181", "b:2181"}
	mgr, stop := manage(m.t, cfg)
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	writer, protector := m.split(), m.split()
	wg.Go(func() { m.each(ctx, mgr, func(s *Session, n int) { m.write(ctx, s, writer, n) }) })
	wg.Go(func() { m.each(ctx, mgr, func(s *Session, _ int) { m.protect(ctx, s, protector) }) })
	wg.Go(func() { m.each(ctx, mgr, func(s *Session, _ int) { m.watch(ctx, s) }) })
	if !m.silent {
		wg.Go(func() { m.audit(ctx, mgr) })
	}
	for n := range 8 + m.rng.IntN(12) {
		m.fault()
		time.Sleep(time.Duration(m.rng.IntN(5000)) * time.Millisecond)
		m.must(m.srv.Set("/w", fmt.Append(nil, n)))
	}
	m.srv.ClearFaults()
	m.srv.Resume()
	m.must(m.srv.Set("/w", []byte("the end")))
	for end := time.Now().Add(2 * time.Minute); m.watched() != "the end" && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	if got := m.watched(); got != "the end" {
		m.t.Errorf("the watcher sees %q two minutes after the last fault; state %+v", got, mgr.Status())
	}
	cancel()
	wg.Wait()
	start := time.Now()
	stop()
	if took := time.Since(start); took > 4*time.Second {
		m.t.Errorf("the end took %s", took)
	}
	time.Sleep(2 * memConfig(m.srv).Timeout) // a goodbye may not have been heard
	if left, _ := m.srv.Children("/p"); len(left) > 0 {
		m.t.Errorf("left behind: %v", left)
	}
}

func (m *sim) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Error(err)
	}
}

func (m *sim) split() *rand.Rand { return rand.New(rand.NewPCG(m.rng.Uint64(), 1)) }

func (m *sim) watched() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// each calls step again and again, in the session that there is.
func (m *sim) each(ctx context.Context, mgr *Manager, step func(s *Session, n int)) {
	for n := 0; ; n++ {
		s, err := mgr.Session(ctx)
		if err != nil {
			return
		}
		step(s, n)
		timer := time.NewTimer(time.Duration(n%7*200+1) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// write creates, changes or deletes a znode that no other client touches, and compares
// the znode with the result of the call.
func (m *sim) write(ctx context.Context, s *Session, rng *rand.Rand, n int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20_000))*time.Millisecond)
	defer cancel()
	path := fmt.Sprintf("/x%d", n)
	_, _, err := s.Create(ctx, path, []byte("1"), Persistent)
	m.outcome("create", err, m.srv.Exists(path))
	if err != nil {
		return
	}
	_, err = s.Set(ctx, path, []byte("2"), 0)
	node, _ := m.srv.Get(path)
	m.outcome("set", err, string(node.Data) == "2")
}

// outcome compares what a write said with what the server has.
func (m *sim) outcome(what string, err error, done bool) {
	m.t.Helper()
	switch {
	case err == nil && !done:
		m.t.Errorf("%s: said to be done, and is not", what)
	case err != nil && !errors.Is(err, ErrUnknown) && done:
		m.t.Errorf("%s: done, and said: %v", what, err)
	}
}

// protect makes a protected znode and deletes it again. When the create fails,
// it must not be there, at the latest when the session has ended.
func (m *sim) protect(ctx context.Context, s *Session, rng *rand.Rand) {
	bounded, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20_000))*time.Millisecond)
	defer cancel()
	path, stat, err := s.CreateProtected(bounded, "/p", "x-", nil, EphemeralSequential)
	if err != nil {
		return
	}
	if stat.EphemeralOwner != s.ID() {
		m.t.Errorf("%s belongs to %#x, the session is %#x", path, stat.EphemeralOwner, s.ID())
	}
	own := 0
	for p, n := range m.srv.Tree() {
		if strings.HasPrefix(p, "/p/") && n.Stat.EphemeralOwner == s.ID() && n.Stat.Czxid >= stat.Czxid {
			own++
		}
	}
	if own > 1 {
		m.t.Errorf("%d znodes of one create", own)
	}
	for ctx.Err() == nil && s.Context().Err() == nil {
		if err := s.Delete(ctx, path, -1); err == nil || errors.Is(err, ErrNoNode) {
			return
		}
	}
}

// watch reads and waits until the session ends, now and then below a cover that
// comes before a read or goes while its watch waits.
func (m *sim) watch(ctx context.Context, s *Session) {
	var c *RecursiveWatch
	defer func() { c.Release() }()
	for i := 0; ; i++ {
		if i%3 == 1 {
			c, _ = s.WatchRecursive(ctx, []string{"/", "/w"}[i/3%2])
		}
		data, _, w, err := s.GetW(ctx, "/w")
		if err != nil {
			return
		}
		m.mu.Lock()
		m.seen = string(data)
		m.mu.Unlock()
		if i%3 == 2 {
			c.Release()
			c = nil
		}
		select {
		case <-w.C():
		case <-s.Done():
			return
		case <-ctx.Done():
			w.Stop()
			return
		}
	}
}

// audit checks all the time that a session that is held is one of the server's.
func (m *sim) audit(ctx context.Context, mgr *Manager) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, time.Millisecond)
		s, err := mgr.Session(bounded)
		cancel()
		if err != nil {
			continue
		}
		m.mu.Lock()
		alive := map[int64]bool{}
		for _, id := range m.srv.SessionIDs() {
			alive[id] = true
		}
		if s.Held() && !alive[s.ID()] && !m.terminated[s.ID()] {
			m.t.Errorf("session %#x is held until %s, and the server has ended it", s.ID(), s.Lease())
		}
		m.mu.Unlock()
	}
}

// fault injects one fault, or ends all.
func (m *sim) fault() {
	ops := []int32{jute.OpCreate2, jute.OpMulti, jute.OpSetData, jute.OpGetData, jute.OpSync, jute.OpGetChildren2, jute.OpAddWatch, jute.OpRemoveWatches, jute.OpSetWatches, jute.OpCreateSession, memzk.AnyOp}
	op := ops[m.rng.IntN(len(ops))]
	addr := []string{"a:2181", "b:2181"}[m.rng.IntN(2)]
	switch m.rng.IntN(14) {
	case 0:
		m.srv.DropConnections()
	case 1, 2, 3:
		m.srv.LoseReply(op, 1+m.rng.IntN(3), m.rng.IntN(2) == 0)
	case 4:
		m.srv.Delay(op, time.Duration(m.rng.IntN(3000))*time.Millisecond)
	case 5:
		m.srv.Partition(addr)
	case 6:
		m.srv.Partition()
	case 7:
		m.srv.CutServerToClient()
	case 8:
		m.srv.CutClientToServer(addr)
	case 9:
		m.srv.Restart()
	case 10:
		m.expire()
	case 11:
		if m.silent {
			m.srv.SilentNewSession()
			m.srv.DropConnections()
		}
	case 12:
		m.srv.Pause()
		time.Sleep(time.Duration(m.rng.IntN(20_000)) * time.Millisecond)
		m.srv.Resume()
	default:
		m.srv.ClearFaults()
	}
	synctest.Wait()
}

// expire ends all sessions before their time.
func (m *sim) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.srv.SessionIDs() {
		m.terminated[id] = true
		m.srv.ExpireSession(id)
	}
}
