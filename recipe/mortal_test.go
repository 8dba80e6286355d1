package recipe

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// process is a client that is killed at a chosen request: the request and what
// follows never leave it, or its reply and what follows never arrive. Its session
// ends on the server when that has not heard of it for the timeout.
type process struct {
	s    *session.Session
	ctx  context.Context //nolint:containedctx // ends when it is killed
	kill context.CancelFunc

	mu     sync.Mutex // mu guards what follows
	left   int        // requests until it is killed; 0: it is immortal
	before bool       // killed before the request is sent
	died   time.Time
}

var errKilled = errors.New("killed")

// start starts a process that is killed at its nth request, pings and handshakes
// not counted; 0 is never.
func (w *world) start(t *testing.T, name string, n int, before bool) *process {
	t.Helper()
	p := &process{left: n, before: before}
	p.ctx, p.kill = context.WithCancel(t.Context())
	s, err := session.Dial(p.ctx, session.Config{
		Servers: []string{name + ":2181"}, Timeout: memTimeout,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if p.ctx.Err() != nil {
				return nil, errKilled
			}
			c, err := w.Dial(ctx, network, addr)
			return &mortalConn{Conn: c, p: p}, err
		},
	})
	if err != nil {
		panic(err) // the handshake is not counted, and nothing else is in the way
	}
	p.s = s
	w.opened(s)
	return p
}

// alive reports whether the process has not been killed.
func (p *process) alive() bool { return p.ctx.Err() == nil }

// gone reports whether the server must have ended its session by now.
func (p *process) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.died.IsZero() && time.Since(p.died) > 2*memTimeout
}

// mortalConn counts the requests of a process.
type mortalConn struct {
	net.Conn
	p     *process
	greet bool // the handshake was sent
}

// Write sends the frames in b until the fatal one.
func (c *mortalConn) Write(b []byte) (int, error) {
	if !c.greet && len(b) == 4 { // a four-letter word, on a connection of its own
		return c.Conn.Write(b)
	}
	for done := 0; done < len(b); {
		size := 4 + int(binary.BigEndian.Uint32(b[done:]))
		counts := c.greet && int32(binary.BigEndian.Uint32(b[done+4:])) != jute.XidPing
		c.greet = true
		fatal := counts && c.p.count()
		if !fatal || !c.p.before {
			if _, err := c.Conn.Write(b[done : done+size]); err != nil {
				return done, err
			}
		}
		if fatal {
			c.p.kill()
			_ = c.Close()
			if !c.p.before {
				done += size // It was sent: with a smaller count the caller would take it for not applied.
			}
			return done, errKilled
		}
		done += size
	}
	return len(b), nil
}

// Read hands out nothing once the process was killed.
func (c *mortalConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.p.alive() {
		return 0, errKilled
	}
	return n, err
}

// count counts one request and reports whether it is the fatal one.
func (p *process) count() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return false
	}
	p.left--
	if p.left == 0 {
		p.died = time.Now()
		return true
	}
	return false
}

// everyStep runs f with a victim that dies at its first request, its second, and
// so on, each time before and after the request is sent, until it lives: f
// reports whether the victim was killed. A loop of no requests is a bug.
func everyStep(t *testing.T, f func(t *testing.T, w *world, n int, before bool) bool) {
	t.Helper()
	const most = 60
	first, stride := testhelp.Steps()
	for n := first; n <= most; n += stride {
		killed := false
		for _, before := range []bool{true, false} {
			bubble(t, func(t *testing.T, w *world) {
				hit := f(t, w, n, before)
				killed = killed || hit
			})
			if t.Failed() {
				t.Fatalf("killed at request %d, before it was sent: %v", n, before)
			}
		}
		if !killed {
			if n == first {
				t.Fatal("the victim makes no requests")
			}
			return
		}
	}
	t.Fatalf("the victim made more than %d requests", most)
}
