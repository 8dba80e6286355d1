package fleet

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// meter counts what passes between one host and the server.
type meter struct {
	requests atomic.Int64 // but for handshakes and pings
	bytes    atomic.Int64 // both ways
}

// meteredConn looks at the frames that its client sends.
type meteredConn struct {
	net.Conn
	m *meter

	left int64  // bytes of the present frame that are still to come
	head []byte // of a frame: its length and its xid
	met  bool   // the handshake has been sent
}

// Write implements net.Conn; one goroutine writes at a time.
func (c *meteredConn) Write(b []byte) (int, error) {
	c.m.bytes.Add(int64(len(b)))
	for rest := b; len(rest) > 0; {
		if c.left > 0 {
			n := min(c.left, int64(len(rest)))
			c.left, rest = c.left-n, rest[n:]
			continue
		}
		n := min(8-len(c.head), len(rest))
		c.head, rest = append(c.head, rest[:n]...), rest[n:]
		if len(c.head) < 8 {
			continue
		}
		const pingXid = -2
		if xid := int32(binary.BigEndian.Uint32(c.head[4:])); c.met && xid != pingXid {
			c.m.requests.Add(1)
		}
		c.met, c.left, c.head = true, int64(binary.BigEndian.Uint32(c.head))-4, nil
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.bytes.Add(int64(n))
	return n, err
}

// crowd is many hosts that follow one tree and say what they use.
type crowd struct {
	server *memzk.Server
	desk   *session.Session
	meters []*meter
	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu   sync.Mutex // guards what follows
	have map[int]int64
	last chan struct{} // closed when all have the version that is awaited
	want int64
}

func newCrowd(tb testing.TB, n int) *crowd {
	ctx, cancel := context.WithCancel(tb.Context())
	c := &crowd{server: memzk.New(memzk.Options{}), cancel: cancel, have: map[int]int64{}}
	c.desk = c.dial(ctx, tb, c.server.Dial)
	for i := range n {
		m := &meter{}
		c.meters = append(c.meters, m)
		s := c.dial(ctx, tb, func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := c.server.Dial(ctx, network, addr)
			return &meteredConn{Conn: conn, m: m}, err
		})
		subscriber := NewSubscriber(SubscriberConfig{Path: root, ID: fmt.Sprintf("host-%03d", i)})
		watcher := config.NewWatcher(config.Config{Name: "site", Path: root})
		c.wg.Go(func() { _ = subscriber.Run(ctx, s) })
		c.wg.Go(func() {
			defer s.Close()
			_ = watcher.Run(ctx, s, func(u view.Update) {
				if tree, ok := u.(*view.Tree); ok {
					subscriber.Report(tree.Generation, StateOK, nil)
					c.arrived(i, tree.Generation)
				}
			})
		})
	}
	return c
}

func (c *crowd) dial(ctx context.Context, tb testing.TB, dial func(context.Context, string, string) (net.Conn, error)) *session.Session {
	tb.Helper()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"memzk:2181"}, Timeout: 20 * time.Second, Dial: dial})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (c *crowd) arrived(host int, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.have[host] = version
	for i := range c.meters {
		if c.have[i] < c.want || c.want == 0 {
			return
		}
	}
	if c.last != nil {
		close(c.last)
		c.last = nil
	}
}

// publish publishes a tree and waits until all hosts have it.
func (c *crowd) publish(tb testing.TB, keys map[string][]byte) {
	tb.Helper()
	c.mu.Lock()
	last := make(chan struct{})
	c.last, c.want = last, c.want+1 // versions are counted from 1
	c.mu.Unlock()
	r, err := Publish(tb.Context(), c.desk, PublishConfig{Path: root, Layout: config.LayoutVersioned, Keys: keys, Force: true})
	if err != nil {
		tb.Fatal(err)
	}
	if r.Version != c.want {
		tb.Fatalf("published v%d, want v%d", r.Version, c.want)
	}
	<-last
}

// reset begins to count anew.
func (c *crowd) reset() {
	for _, m := range c.meters {
		m.requests.Store(0)
		m.bytes.Store(0)
	}
}

func (c *crowd) close() {
	c.cancel()
	c.wg.Wait()
	_ = c.desk.Close()
	c.server.Close()
}

// manyKeys is a tree whose first keys have the given value.
func manyKeys(n, changed int, value string) map[string][]byte {
	keys := map[string][]byte{}
	for i := range n {
		keys[fmt.Sprintf("app/k%05d", i)] = []byte("a value of some length, as they are")
		if i < changed {
			keys[fmt.Sprintf("app/k%05d", i)] = []byte(value)
		}
	}
	return keys
}

// TestPublishTraffic: what an unvoted publish costs each host does not depend
// on the size of the tree.
func TestPublishTraffic(t *testing.T) {
	testhelp.InTurn(t, 2)
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 10)
		defer c.close()
		c.publish(t, manyKeys(10_000, 1, "first"))
		for _, changed := range []int{1, 5} {
			time.Sleep(time.Minute) // virtual: what follows the last publish is over
			synctest.Wait()
			c.reset()
			c.publish(t, manyKeys(10_000, changed, fmt.Sprintf("changed with %d", changed)))
			time.Sleep(time.Second) // virtual: reports are written
			synctest.Wait()
			all := int64(0)
			for i, m := range c.meters {
				got, most := m.requests.Load(), int64(2)
				if all += got; got > most+1 { // one may be the slow look, each 30 to 60 s
					t.Errorf("host %d sent %d requests for %d changed keys, want at most %d", i, got, changed, most)
				}
				if got := m.bytes.Load(); changed == 1 && got > 2_000 {
					t.Errorf("host %d moved %d bytes, want at most 2 kB", i, got)
				}
			}
			if most := int64(2*len(c.meters) + len(c.meters)/2); all > most {
				t.Errorf("%d hosts sent %d requests for %d changed keys, want 2 a host and a few slow looks", len(c.meters), all, changed)
			}
			t.Logf("%d of 10,000 keys changed: %d requests, %d bytes per host", changed, c.meters[0].requests.Load(), c.meters[0].bytes.Load())
		}
	})
}

// trafficHost uses what it is told to at once.
type trafficHost struct{ subscriber *Subscriber }

func (h *trafficHost) Vote(context.Context, *view.Tree) error { return nil }

func (h *trafficHost) Show(tree *view.Tree) {
	h.subscriber.Report(tree.Generation, StateOK, nil)
}

func (h *trafficHost) Use(_ context.Context, tree, _ *view.Tree) error {
	h.Show(tree)
	return nil
}

func (h *trafficHost) Back(_ context.Context, tree *view.Tree) error {
	h.Show(tree)
	return nil
}

// TestRolloutTraffic: what a rollout costs a host that does not stand for
// coordinator: four reads, three writes, and one report.
func TestRolloutTraffic(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, hosts := range []int{1, 3, 20} {
		synctest.Test(t, func(t *testing.T) { rolloutTraffic(t, hosts) })
	}
}

func rolloutTraffic(t *testing.T, hosts int) {
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{server: memzk.New(memzk.Options{}), cancel: cancel}
	c.desk = c.dial(ctx, t, c.server.Dial)
	if _, err := Publish(ctx, c.desk, PublishConfig{Path: root, Keys: manyKeys(1000, 1, "first")}); err != nil {
		t.Fatal(err)
	}
	for i := range hosts {
		m := &meter{}
		c.meters = append(c.meters, m)
		s := c.dial(ctx, t, func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := c.server.Dial(ctx, network, addr)
			return &meteredConn{Conn: conn, m: m}, err
		})
		id := fmt.Sprintf("host-%03d", i)
		subscriber := NewSubscriber(SubscriberConfig{Path: root, ID: id})
		watcher := config.NewWatcher(config.Config{Name: "site", Path: root})
		p := New(Config{
			Root: root, Agent: id, Host: &trafficHost{subscriber}, Owned: subscriber.Owned, NeverCoordinate: i > 0,
			Tree: func(ctx context.Context, s *session.Session, v Version) (*view.Tree, error) {
				return watcher.ReadProposed(ctx, s, v.Number, v.Digest, v.Delta)
			},
		})
		c.wg.Go(func() { _ = subscriber.Run(ctx, s) })
		c.wg.Go(func() { _ = p.Run(ctx, s) })
		c.wg.Go(func() {
			defer s.Close()
			_ = watcher.Run(ctx, s, func(u view.Update) { p.Offer(u.(*view.Tree)) })
		})
	}
	defer c.close()
	time.Sleep(time.Minute) // virtual
	synctest.Wait()
	c.reset()
	began := time.Now()
	r, err := Prepare(ctx, c.desk, PublishConfig{Path: root, Keys: manyKeys(1000, 1, "second")})
	if err != nil {
		t.Fatal(err)
	}
	name, err := Propose(ctx, c.desk, Request{Root: root, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Base: r.Previous, Strategy: Strategy{Parallel: max(1, hosts/10)}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		state, err := Head(ctx, c.desk, root, name)
		if err != nil {
			t.Fatal(err)
		}
		if state.Phase() == PhaseDone {
			break
		}
		time.Sleep(time.Second) // virtual
	}
	time.Sleep(2 * time.Second) // virtual: reports are written
	synctest.Wait()
	all := int64(0)
	looks := 2 * (int64(time.Since(began)/(30*time.Second)) + 1) // at its record and at an object, without an event
	for i, m := range c.meters[1:] {
		got := m.requests.Load() - looks
		if all += got; got > 9 {
			t.Errorf("host %d of %d sent %d requests", i+1, hosts, got)
		}
	}
	if n := int64(hosts - 1); all > 8*n+n/2 { // a grant may cross with a look
		t.Errorf("%d of %d hosts sent %d requests", n, hosts, all)
	}
	last := c.meters[len(c.meters)-1]
	t.Logf("%d hosts: %d requests and %d bytes a host, %d requests of the coordinator's", hosts, last.requests.Load(), last.bytes.Load(), c.meters[0].requests.Load())
}

// BenchmarkPublish is from the publish of one changed key to the last of 200
// hosts having the tree.
func BenchmarkPublish(b *testing.B) {
	c := newCrowd(b, 200)
	defer c.close()
	keys := manyKeys(1000, 1, "first")
	c.publish(b, keys)
	c.reset()
	n := 0
	for b.Loop() {
		n++
		c.publish(b, manyKeys(1000, 1, fmt.Sprintf("value %d", n)))
	}
	var requests, bytes int64
	for _, m := range c.meters {
		requests += m.requests.Load()
		bytes += m.bytes.Load()
	}
	b.ReportMetric(float64(requests)/float64(n*len(c.meters)), "requests/host")
	b.ReportMetric(float64(bytes)/float64(n*len(c.meters)), "bytes/host")
}
