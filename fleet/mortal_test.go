package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// mortal is the network of one process that is killed at one of its requests.
// From then on nothing of the process reaches the server, and nothing of the
// server reaches the process: its session lives until it expires.
type mortal struct {
	server *memzk.Server
	killed context.CancelFunc // ends what runs in the process

	// before is the request that the process dies before sending, after the
	// write that it dies after sending, without an answer. Both are counted
	// from 1; 0: never.
	before, after int

	mu       sync.Mutex // guards what follows
	requests int
	writes   int
	dead     bool
	conns    []net.Conn
}

var errDead = errors.New("the process was killed")

// dial is for session.Config.
func (m *mortal) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := m.server.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		_ = conn.Close()
		return nil, errDead
	}
	m.conns = append(m.conns, conn)
	return &mortalConn{Conn: conn, m: m}, nil
}

// counts are the requests and the writes that were sent.
func (m *mortal) counts() (int, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests, m.writes
}

// count notes a request, and reports whether the process dies before it or after it.
func (m *mortal) count(op int32) (before, after bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return true, false
	}
	if op == jute.OpPing {
		return false, false
	}
	m.requests++
	switch op {
	case jute.OpCreate, jute.OpCreate2, jute.OpDelete, jute.OpSetData, jute.OpMulti, jute.OpClose:
		m.writes++
		after = m.writes == m.after
	}
	before = m.requests == m.before
	m.dead = before || after
	return before, after
}

// kill ends the process between two of its requests.
func (m *mortal) kill() {
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	m.die()
}

// die closes all connections and ends the process.
func (m *mortal) die() {
	m.mu.Lock()
	conns := m.conns
	m.conns = nil
	m.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	m.killed()
}

func (m *mortal) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// mortalConn sends whole frames, and looks at each of them.
type mortalConn struct {
	net.Conn
	m      *mortal
	buffer []byte // one goroutine writes at a time
	met    bool   // the handshake was sent
}

// Write implements net.Conn.
func (c *mortalConn) Write(b []byte) (int, error) {
	c.buffer = append(c.buffer, b...)
	for len(c.buffer) >= 4 {
		if !c.met && c.buffer[0] != 0 { // a four-letter word, alone on its connection
			return c.Conn.Write(b)
		}
		size := 4 + int(binary.BigEndian.Uint32(c.buffer))
		if len(c.buffer) < size {
			break
		}
		op := jute.OpCreateSession
		if c.met {
			op = int32(binary.BigEndian.Uint32(c.buffer[8:]))
		}
		c.met = true
		before, after := c.m.count(op)
		if before {
			c.m.die()
			return 0, errDead
		}
		if _, err := c.Conn.Write(c.buffer[:size]); err != nil {
			return 0, err
		}
		if after {
			c.m.die()
			return len(b), errDead // It was sent: with a smaller count the caller would take it for not applied.
		}
		c.buffer = c.buffer[size:]
	}
	return len(b), nil
}

// Read implements net.Conn: a process that is dead hears nothing.
func (c *mortalConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.m.isDead() {
		return 0, io.EOF
	}
	return n, err
}
