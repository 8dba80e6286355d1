package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

const (
	// expiryQueue is how many connections wait for the server to accept them.
	expiryQueue = 16
	// expirySlow is how many connections the server takes in a tenth of a second, when
	// it is made slow.
	expirySlow = 50
)

// expiry lets the sessions of many hosts expire together. All hosts come back at once to
// a server that accepts few connections at a time: first one that is as fast as it can
// be, then one that refuses what goes beyond a rate.
func expiry(ctx context.Context, e *env) error {
	for _, c := range []struct {
		name  string
		sizes []int
		flags []string
	}{
		{"expiry", pick(e, []int{200}, []int{1000, 5000}), nil},
		{"expiry, slow server", pick(e, []int{100}, []int{5000}), []string{
			fmt.Sprintf("-Dzookeeper.connection_throttle_tokens=%d", expirySlow),
			"-Dzookeeper.connection_throttle_fill_time=100",
			fmt.Sprintf("-Dzookeeper.connection_throttle_fill_count=%d", expirySlow),
		}},
	} {
		for _, n := range c.sizes {
			if err := e.expiryOf(ctx, c.name, n, c.flags); err != nil {
				return fmt.Errorf("%d hosts: %w", n, err)
			}
		}
	}
	return nil
}

// doors counts the attempts of hosts to connect. An attempt lasts from the dial to the
// first answer, or to the end of the connection.
type doors struct {
	inner    meter
	attempts atomic.Int64
	answered atomic.Int64
	inFlight atomic.Int64

	mu   sync.Mutex // guards what follows
	most int64      // attempts in flight
	twin int64      // attempts in flight of one host
}

// door is one host's.
type door struct {
	all      *doors
	inFlight atomic.Int64
}

func (d *door) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	a := d.all
	a.attempts.Add(1)
	most, twin := a.inFlight.Add(1), d.inFlight.Add(1)
	a.mu.Lock()
	a.most, a.twin = max(a.most, most), max(a.twin, twin)
	a.mu.Unlock()
	over := sync.OnceFunc(func() {
		a.inFlight.Add(-1)
		d.inFlight.Add(-1)
	})
	c, err := a.inner.dial(ctx, network, addr)
	if err != nil {
		over()
		return nil, err
	}
	return &attempt{Conn: c, all: a, over: over}, nil
}

// reset begins to count anew.
func (a *doors) reset() {
	a.attempts.Store(0)
	a.answered.Store(0)
	a.mu.Lock()
	a.most, a.twin = a.inFlight.Load(), 0
	a.mu.Unlock()
}

// attempt is the connection of an attempt. One goroutine reads at a time.
type attempt struct {
	net.Conn

	all  *doors
	over func()
	read bool
}

func (c *attempt) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.read && n > 0 {
		c.read = true
		c.all.answered.Add(1)
	}
	c.over()
	return n, err
}

func (c *attempt) Close() error {
	c.over()
	return c.Conn.Close()
}

// expiring are hosts of which each keeps a session, with a znode that lives as long.
type expiring struct {
	root  string
	doors doors
	back  chan int // a host has its znode in a new session
	stop  func()
}

func (e *env) expiryOf(ctx context.Context, name string, n int, flags []string) error {
	server := zktest.Start(e.tb, zktest.Options{Settings: []string{"clientPortListenBacklog=" + strconv.Itoa(expiryQueue)}, JVMFlags: flags})
	defer server.Kill(e.tb)
	zk := session.Config{Servers: []string{server.Addr()}, Timeout: time.Minute}
	desk, err := session.Dial(ctx, zk)
	if err != nil {
		return err
	}
	defer func() { _ = desk.Close() }()
	zk.Timeout = pick(e, 4*time.Second, 10*time.Second)
	h, err := startExpiring(ctx, desk, zk, n)
	if err != nil {
		return err
	}
	defer h.stop()
	// The network between goes until the server has given up every session. When it
	// is back, the server does not answer yet, so that all hosts meet at its door.
	open := h.doors.inner.cut()
	if err := h.gone(ctx, desk); err != nil {
		return err
	}
	for len(h.back) > 0 { // of sessions that had ended before
		<-h.back
	}
	before, err := transactions(ctx, server)
	if err != nil {
		return err
	}
	server.Freeze(e.tb)
	h.doors.reset()
	open()
	for h.doors.attempts.Load() < int64(n) {
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	outside := h.doors.attempts.Load()
	server.Resume(e.tb)
	began := time.Now()
	if err := h.all(ctx, n); err != nil {
		return err
	}
	took := time.Since(began)
	names, _, err := desk.Children(ctx, h.root)
	if err != nil {
		return err
	}
	after, err := transactions(ctx, server)
	if err != nil {
		return err
	}
	a := &h.doors
	sim := Sim{
		Fleet: Fleet{Hosts: n, Servers: 1, Trees: 1, Rate: 12000}, Writes: 5000, Bandwidth: 100e6, Watches: 300e3, Events: 50e3,
		Trip: 0.001, Timeout: zk.Timeout.Seconds(), Outage: zk.Timeout.Seconds(), Seed: 1,
	}.Expiry()
	note := fmt.Sprintf("simulated: %.0f ms", 1000*sim.Seconds)
	if len(flags) > 0 {
		note = fmt.Sprintf("%d connections a second: %.0f ms at least", 10*expirySlow, 1000*per(2*int64(n), 10*expirySlow))
	}
	e.add(Row{Case: name + ": hosts that are back", Size: n, Unit: "hosts", Ours: float64(len(names)), Limit: float64(n), Note: fmt.Sprintf("accept queue of %d", expiryQueue)})
	e.add(Row{Case: name + ": until all are back", Size: n, Unit: "ms", Ours: ms(took), Note: note})
	e.add(Row{Case: name + ": attempts to connect a host", Size: n, Unit: "attempts", Ours: per(a.attempts.Load()-outside, n), Note: fmt.Sprintf("%.2f answered; the first learns that the session is gone", per(a.answered.Load(), n))})
	e.add(Row{Case: name + ": attempts at once, of all", Size: n, Unit: "attempts", Ours: float64(a.most)})
	e.add(Row{Case: name + ": attempts at once, of a host", Size: n, Unit: "attempts", Ours: float64(a.twin), Limit: 1})
	e.add(Row{Case: name + ": transactions a host", Size: n, Unit: "transactions", Ours: float64(after-before) / float64(n), Note: "a session and its znode; more: sessions that nobody waited for"})
	return nil
}

// startExpiring starts the hosts and waits until each has its znode.
func startExpiring(ctx context.Context, desk *session.Session, zk session.Config, n int) (*expiring, error) {
	h := &expiring{root: "/expiring", back: make(chan int, n)}
	if _, _, err := desk.Create(ctx, h.root, nil, session.Persistent); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	h.stop = func() {
		cancel()
		wg.Wait()
	}
	for i := range n {
		zk.Dial = (&door{all: &h.doors}).dial
		m, err := session.New(zk)
		if err != nil {
			h.stop()
			return nil, err
		}
		wg.Go(func() { _ = m.Run(run) })
		wg.Go(func() { h.host(run, m, i) })
		if i%100 == 99 { // a start in parts: the case is about the return
			if err := h.all(ctx, 100); err != nil {
				h.stop()
				return nil, err
			}
		}
	}
	if err := h.all(ctx, n%100); err != nil {
		h.stop()
		return nil, err
	}
	return h, nil
}

// host keeps a znode in each of its sessions.
func (h *expiring) host(ctx context.Context, m *session.Manager, i int) {
	path := h.root + "/host-" + strconv.Itoa(i)
	for {
		s, err := m.Session(ctx)
		if err != nil {
			return
		}
		for {
			_, _, err = s.Create(ctx, path, nil, session.Ephemeral)
			if err == nil || errors.Is(err, session.ErrNodeExists) {
				h.back <- i
				break
			}
			if s.Context().Err() != nil || wait(ctx, 10*time.Millisecond) != nil {
				break
			}
		}
		select {
		case <-s.Done():
		case <-ctx.Done():
			return
		}
	}
}

// all waits until n hosts have said that they are back.
func (h *expiring) all(ctx context.Context, n int) error {
	for seen := make(map[int]bool, n); len(seen) < n; {
		i, err := await(ctx, h.back)
		if err != nil {
			return fmt.Errorf("%d of %d hosts are back: %w", len(seen), n, err)
		}
		seen[i] = true
	}
	return nil
}

// gone waits until no host has a znode any more.
func (h *expiring) gone(ctx context.Context, desk *session.Session) error {
	for {
		names, _, w, err := desk.ChildrenW(ctx, h.root)
		if err != nil || len(names) == 0 {
			return err
		}
		if _, err := await(ctx, w.C()); err != nil {
			return err
		}
		w.Stop()
	}
}

// transactions is how many the server has made.
func transactions(ctx context.Context, server *zktest.Server) (int64, error) {
	answer, err := zktest.FourLetterWord(ctx, server.Addr(), "srvr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(answer) {
		if zxid, ok := strings.CutPrefix(line, "Zxid: "); ok {
			return strconv.ParseInt(strings.TrimSpace(zxid), 0, 64)
		}
	}
	return 0, errors.New("srvr has no Zxid")
}
