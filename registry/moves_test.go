package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestMoves moves a service between groups, ports and formats, also before the last move
// has ended, while it falls ill, is in maintenance, its session and replies are lost, and
// the process is so busy that each step takes seconds.
// The invariants: when the faults are over, its member is once in each of its groups, as
// the last settings say, and in no other one; or in none while it is ill.
func TestMoves(t *testing.T) {
	testhelp.Seeds(t, time.Second, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			m := &moves{t: t, srv: srv, rnd: rand.New(rand.NewPCG(seed, 3))}
			m.play()
		})
	})
}

type moves struct {
	t    *testing.T
	srv  *memzk.Server
	rnd  *rand.Rand
	h    health
	busy atomic.Int64 // the longest pause of a step
	m    *session.Manager
	cfg  ServiceConfig
	reg  *Registrar
	stop []func() // those of each settings
	wait func()   // ends the move that is under way
	log  []string
}

func (m *moves) play() {
	manager, err := session.New(addrConfig(m.srv, "writer:2181"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.m, m.wait = manager, func() {}
	life, end := context.WithCancel(m.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = manager.Run(life) }()
	busy := int64(m.rnd.IntN(2)) * int64(3*time.Second)
	m.busy.Store(busy)
	m.settings()
	for range 4 + m.rnd.IntN(10) {
		m.strike()
		time.Sleep(time.Duration(m.rnd.IntN(8000)) * time.Millisecond)
	}
	m.srv.ClearFaults()
	m.srv.Heal()
	m.busy.Store(0)
	ill := m.rnd.IntN(4) == 0 && busy == 0
	m.h.bad.Store(ill)
	_ = m.reg.Maintenance(false, "", time.Time{})
	m.settles(ill)
	m.busy.Store(busy)
	m.note("expires at the end")
	m.srv.ExpireSession(m.m.Status().SessionID)
	time.Sleep(20 * time.Second)
	m.busy.Store(0)
	m.settles(ill)
	m.wait()
	for _, stop := range m.stop {
		stop()
	}
	end()
	<-ended
}

// settings moves the service to other settings, as an agent does that loads them.
func (m *moves) settings() {
	m.wait()
	c := webService(&m.h)
	c.Port = 8080 + m.rnd.IntN(2)
	c.Format = []string{FormatNerve, FormatCurator, FormatServerSet}[m.rnd.IntN(3)]
	c.Drain = time.Duration(m.rnd.IntN(3)) * time.Second
	c.Splay = time.Duration(m.rnd.IntN(3)) * time.Second
	if m.busy.Load() > 0 {
		c.Checks = nil // the next run of a check would wake what has lost its time
	}
	c.Changed = func() {
		if most := m.busy.Load(); most > 0 {
			time.Sleep(rand.N(time.Duration(most))) // virtual
		}
	}
	groups := []string{groupPath, "/services/b", "/services/c"}
	m.rnd.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	c.Groups = groups[:1+m.rnd.IntN(2)]
	m.note("%s %d %v", c.Format, c.Port, c.Groups)
	old, next := m.reg, NewRegistrar(c)
	m.cfg, m.reg = c, next
	if old != nil {
		next.inherit(old)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = next.RunChecks(ctx) })
	all.Go(func() { _ = m.m.Each(ctx, next.Run) })
	m.stop = append(m.stop, func() { cancel(); all.Wait() })
	if old == nil {
		return
	}
	hurry, now := context.WithTimeout(m.t.Context(), time.Minute)
	stop, moved := m.stop[len(m.stop)-2], make(chan struct{})
	go func() {
		defer close(moved)
		select {
		case <-next.Joined():
		case <-hurry.Done():
		}
		_ = old.Drain(m.t.Context())
		stop()
	}()
	m.wait = func() { m.srv.Heal(); now(); <-moved }
}

func (m *moves) note(format string, args ...any) {
	m.log = append(m.log, time.Now().Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
}

func (m *moves) strike() {
	switch m.rnd.IntN(10) {
	case 0, 1, 2, 3:
		m.settings()
	case 4:
		m.note("expires")
		m.srv.ExpireSession(m.m.Status().SessionID)
	case 5:
		ops := []int32{jute.OpCreate, jute.OpCreate2, jute.OpDelete, jute.OpSetData, jute.OpMulti, memzk.AnyOp}
		m.note("loses a reply")
		m.srv.LoseReply(ops[m.rnd.IntN(len(ops))], 1+m.rnd.IntN(4), m.rnd.IntN(2) == 0)
	case 6:
		m.note("is cut off")
		m.srv.Partition("writer:2181")
	case 7:
		m.note("is connected")
		m.srv.Heal()
	case 8:
		m.h.bad.Store(m.rnd.IntN(2) == 0)
		m.note("is ill: %v", m.h.bad.Load())
	case 9:
		on := m.rnd.IntN(2) == 0
		m.note("is in maintenance: %v", on)
		_ = m.reg.SetMaintenance(Maintenance{On: on, Reason: "look", Drain: m.rnd.IntN(2) == 0})
	}
}

// settles waits until the members are as they should be, and stay so.
func (m *moves) settles(ill bool) {
	for end := time.Now().Add(4 * time.Minute); !m.right(ill) && time.Now().Before(end); {
		time.Sleep(time.Second)
		synctest.Wait()
	}
	time.Sleep(20 * time.Second)
	synctest.Wait()
	if m.right(ill) {
		return
	}
	for path := range m.srv.Tree() {
		m.t.Logf("%s", path)
	}
	m.t.Errorf("wanted: %s %d in %v, ill is %v\n%s", m.cfg.Format, m.cfg.Port, m.cfg.Groups, ill, strings.Join(m.log, "\n"))
}

func (m *moves) right(ill bool) bool {
	found := map[string]int{}
	for path, n := range m.srv.Tree() {
		group, name := session.SplitPath(path)
		if n.Stat.EphemeralOwner == 0 || !strings.HasPrefix(group, "/services") && group != groupPath {
			continue
		}
		got, err := Decode(m.cfg.Format, name, n.Data)
		if found[group]++; err != nil || got.Port != m.cfg.Port || !got.MayServe() || !slices.Contains(m.cfg.Groups, group) {
			return false
		}
	}
	for _, group := range m.cfg.Groups {
		if found[group] != map[bool]int{false: 1}[ill] {
			return false
		}
	}
	return true
}

// A member is created, the reply is lost, and before the registrar finds that out the next
// settings take over. They find the member, although it has another port.
func TestRegistrar_TakesOverAMemberWhoseReplyWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m := &moves{t: t, srv: srv, rnd: rand.New(rand.NewPCG(1, 1))}
		manager, err := session.New(addrConfig(srv, "writer:2181"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = manager.Run(ctx) })
		c := webService(&m.h)
		c.Format = FormatServerSet
		start := func(r *Registrar) {
			all.Go(func() { _ = r.RunChecks(ctx) })
			all.Go(func() { _ = manager.Each(ctx, r.Run) })
		}
		if err := srv.Create(groupPath, nil); err != nil {
			t.Fatal(err)
		}
		lost := srv.LoseReply(jute.OpCreate2, 1, false)
		old := NewRegistrar(c)
		start(old)
		<-lost
		srv.Partition("writer:2181")
		c.Port++
		next := NewRegistrar(c)
		next.inherit(old)
		start(next)
		time.Sleep(6 * time.Second) // its checks pass
		srv.Heal()
		<-next.Joined()
		if err := old.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		m.cfg = c
		if !m.right(false) {
			t.Errorf("members: %v", nodes(srv))
		}
		cancel()
		all.Wait()
	})
}

// A member that drains, or goes into maintenance, and loses its session is not registered
// again to show that.
func TestRegistrar_SessionEndsWhileItDrains(t *testing.T) {
	for _, leave := range []func(context.Context, *Registrar){
		func(ctx context.Context, r *Registrar) { go func() { _ = r.Drain(ctx) }() },
		func(_ context.Context, r *Registrar) { _ = r.SetMaintenance(Maintenance{On: true, Drain: true}) },
	} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			var h health
			c := webService(&h)
			c.Drain = time.Minute
			r := NewRegistrar(c)
			m := run(t, memConfig(srv), r)
			defer m.stop()
			is := func(there bool) func() bool { return func() bool { _, _, ok := one(srv); return ok == there } }
			eventually(t, 10*time.Second, "the member", is(true))
			leave(t.Context(), r)
			always(t, 10*time.Second, "draining", is(true))
			srv.ExpireSession(m.Status().SessionID)
			time.Sleep(10 * time.Millisecond)
			always(t, 2*time.Minute, "gone", is(false))
		})
	}
}
