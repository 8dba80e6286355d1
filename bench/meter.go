package bench

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// meter counts the frames and bytes of the connections that it dials. Pings and
// handshakes do not count as frames. It can hold back new connections and cut
// existing ones.
type meter struct {
	requests, sent, received atomic.Int64

	mu    sync.Mutex // guards what follows
	conns []net.Conn
	gate  chan struct{} // not nil: dials wait until it is closed
}

func (m *meter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.conns = append(m.conns, c)
	m.mu.Unlock()
	return &metered{Conn: c, m: m}, nil
}

// dialer is dial for the client library.
func (m *meter) dialer(network, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return m.dial(ctx, network, addr)
}

// cut ends all connections and holds back new ones until the function that it
// returns is called.
func (m *meter) cut() func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	m.gate = gate
	for _, c := range m.conns {
		_ = c.Close()
	}
	m.conns = nil
	return func() {
		m.mu.Lock()
		m.gate = nil
		m.mu.Unlock()
		close(gate)
	}
}

// count is a moment of a meter.
type count struct{ requests, sent, received int64 }

func (m *meter) now() count {
	return count{m.requests.Load(), m.sent.Load(), m.received.Load()}
}

func (c count) since(o count) count {
	return count{c.requests - o.requests, c.sent - o.sent, c.received - o.received}
}

// metered is one connection. One goroutine writes at a time.
type metered struct {
	net.Conn

	m      *meter
	head   []byte // the first bytes of a frame: length and xid
	skip   int    // what remains of the frame
	opened bool   // the handshake has been written
}

func (c *metered) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.m.received.Add(int64(n))
	return n, err
}

func (c *metered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.m.sent.Add(int64(n))
	c.parse(p[:n])
	return n, err
}

func (c *metered) parse(p []byte) {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			continue
		}
		n := min(8-len(c.head), len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
		if len(c.head) < 8 {
			return
		}
		c.skip = int(binary.BigEndian.Uint32(c.head)) - 4
		xid := int32(binary.BigEndian.Uint32(c.head[4:])) //nolint:gosec // As it is on the wire.
		if c.opened && xid != jute.XidPing {
			c.m.requests.Add(1)
		}
		c.opened, c.head = true, c.head[:0]
	}
}
