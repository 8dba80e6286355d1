package election

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestSeeds runs candidates in virtual time under random faults: lost replies, cuts,
// drops, restarts, expiries, candidates that crash at any step, and an operator who
// deletes their znodes. The invariants: no two lead at once, as far as the contexts of
// their terms say; terms grow and end; and when the faults are over the first in line
// leads.
func TestSeeds(t *testing.T) {
	testhelp.Seeds(t, 3*time.Second, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *memzk.Server) {
			(&sim{t: t, w: w, rng: rand.New(rand.NewPCG(seed, 1)), terminated: map[int64]bool{}}).run()
		})
	})
}

// sim is one simulation.
type sim struct {
	t   *testing.T
	w   *memzk.Server
	rng *rand.Rand

	mu         sync.Mutex      // guards what follows
	leader     string          // who leads
	in         int64           // the session that the leader is in
	last       int64           // the latest term
	term       context.Context // of the leader
	terminated map[int64]bool  // sessions that the server ended before their time, and terms that an operator did
}

func (m *sim) run() {
	const candidates = 3
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	for i := range candidates {
		rng := rand.New(rand.NewPCG(m.rng.Uint64(), 1))
		wg.Go(func() { m.candidate(ctx, i, rng) })
	}
	for range 8 + m.rng.IntN(16) {
		m.fault(fmt.Sprintf("c%d:2181", m.rng.IntN(candidates)))
		time.Sleep(time.Duration(m.rng.Int64N(int64(memTimeout))))
	}
	m.w.ClearFaults()
	m.w.Start()
	m.settles()
	cancel()
	wg.Wait()
}

// settles waits until the first in line leads. Candidates come and go all the
// time, so it is enough that they come to that.
func (m *sim) settles() {
	for range 300 {
		time.Sleep(time.Second)
		synctest.Wait()
		if m.firstLeads() {
			return
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.t.Errorf("five minutes after the last fault %q leads in term %d; there are %v", m.leader, m.last, m.w.Tree())
}

// candidate stands in one session after the other, until ctx ends. Now and then
// it resigns, or dies: then nothing it says reaches the server any more.
func (m *sim) candidate(ctx context.Context, i int, rng *rand.Rand) {
	id := fmt.Sprintf("c%d", i)
	for n := 0; ctx.Err() == nil; n++ {
		addr := fmt.Sprintf("%s:2181", id)
		s, err := session.Dial(ctx, session.Config{Servers: []string{addr}, Timeout: memTimeout, Dial: m.w.Dial})
		if err != nil {
			continue
		}
		c := New(Config{Name: "e", Path: "/e", ID: id, Observe: i%2 == 0, Keep: n%2 != 0, Lead: m.lead(id)})
		life, end := context.WithCancel(ctx)
		dies := time.AfterFunc(time.Duration(rng.Int64N(int64(20*memTimeout))), func() {
			if ctx.Err() == nil {
				m.w.Partition(addr)
			}
			end()
		})
		_ = c.Run(life, s, nil)
		dies.Stop()
		end()
		_ = s.Close()
		m.w.Heal(addr)
	}
}

// lead notes the leader, and checks that no other candidate leads.
func (m *sim) lead(id string) func(context.Context, Term) {
	return func(ctx context.Context, term Term) {
		m.mu.Lock()
		if ctx.Err() != nil { // The term has ended before its function runs.
			m.mu.Unlock()
			return
		}
		// A server that ends a session before its time breaks the promise that
		// the lease of its owner stands on.
		if m.leader != "" && !m.terminated[m.in] && !m.terminated[m.last] || term.ID < m.last {
			m.t.Errorf("%s leads in term %d while %q does, last term %d", id, term.ID, m.leader, m.last)
		}
		m.leader, m.in, m.last = id, term.Session.ID(), term.ID
		if before := m.term; before != nil {
			time.AfterFunc(memTimeout, func() {
				if before.Err() == nil {
					m.t.Errorf("the term before %d has not ended", term.ID)
				}
			})
		}
		m.term = ctx
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.last == term.ID {
			m.leader = ""
		}
	}
}

// firstLeads reports whether the leader's znode is the oldest of all.
func (m *sim) firstLeads() bool {
	oldest := int64(0)
	for path, n := range m.w.Tree() {
		if strings.HasPrefix(path, "/e/") && (oldest == 0 || n.Stat.Czxid < oldest) {
			oldest = n.Stat.Czxid
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader != "" && m.last == oldest && oldest > 0
}

// fault injects one fault, or ends all.
func (m *sim) fault(addr string) {
	switch m.rng.IntN(12) {
	case 0, 1:
		m.w.LoseReply(memzk.AnyOp, 1+m.rng.IntN(8), m.rng.IntN(2) == 0)
	case 2:
		m.w.DropConnections(addr)
	case 3:
		m.w.Partition(addr)
	case 4:
		m.w.CutServerToClient(addr)
	case 5:
		m.w.CutClientToServer(addr)
	case 6:
		m.w.Restart()
	case 7:
		m.mu.Lock()
		for _, id := range m.w.SessionIDs() {
			if m.rng.IntN(3) == 0 {
				m.terminated[id] = true
				m.w.ExpireSession(id)
			}
		}
		m.mu.Unlock()
	case 8:
		m.mu.Lock()
		names, _ := m.w.Children("/e")
		for _, name := range names {
			if n, err := m.w.Get("/e/" + name); err == nil && m.rng.IntN(3) == 0 {
				m.terminated[n.Stat.Czxid] = true
				_ = m.w.Delete("/e/" + name)
			}
		}
		m.mu.Unlock()
	default:
		m.w.Heal()
	}
}
