// Package raw is a small ZooKeeper client for tests of servers. It sends one request at a
// time, exactly as given. It records the replies and events in their order.
//
// It never pings, reconnects or repeats. Do not use it for longer than a session
// timeout.
package raw

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// MaxFrame is the largest packet that a Conn reads.
const MaxFrame = 64 << 20

// Reply is one packet from the server after the handshake.
type Reply struct {
	jute.ReplyHeader
	Body []byte
}

// Conn is one connection with its session. It is for one goroutine at a time.
type Conn struct {
	Session jute.ConnectResponse // what the server granted
	Events  []jute.WatcherEvent  // notifications that came before the last reply, oldest first
	Zxid    int64                // of the last reply

	nc  net.Conn
	xid int32
}

// Options says how to connect.
type Options struct {
	Timeout      time.Duration // wanted session timeout, default 30 s
	SessionID    int64         // to take up a session
	Password     []byte
	LastZxidSeen int64
	OldClient    bool // leave out the last byte of the request
}

// ErrRefused means that the server answered that the session is gone.
var ErrRefused = errors.New("session is gone")

// Dial connects to addr over TCP and opens a session.
func Dial(ctx context.Context, addr string, opts ...Options) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return Open(nc, opts...)
}

// Open opens a session on nc, which it owns from now on.
func Open(nc net.Conn, opts ...Options) (*Conn, error) {
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Password == nil {
		o.Password = make([]byte, 16)
	}
	c := &Conn{nc: nc}
	req := jute.ConnectRequest{
		Timeout:   int32(o.Timeout.Milliseconds()), //nolint:gosec // A test's timeout fits.
		SessionID: o.SessionID, Password: o.Password,
		LastZxidSeen: o.LastZxidSeen,
	}
	if !o.OldClient {
		req.ReadOnly = new(false)
	}
	e := jute.NewEncoder(nil)
	e.Put(req)
	if err := c.WriteFrame(e.Bytes()); err != nil {
		c.Drop()
		return nil, err
	}
	b, err := c.ReadFrame()
	if err != nil {
		c.Drop()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if err := jute.NewDecoder(b).Get(&c.Session); err != nil {
		c.Drop()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if c.Session.SessionID == 0 {
		c.Drop()
		return nil, ErrRefused
	}
	return c, nil
}

// WriteFrame sends b with its length before it.
func (c *Conn) WriteFrame(b []byte) error {
	e := jute.NewEncoder(make([]byte, 0, len(b)+4))
	e.Count(len(b))
	e.Raw(b)
	if _, err := c.nc.Write(e.Bytes()); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// ReadFrame reads one packet without its length. It gives up after a minute.
func (c *Conn) ReadFrame() ([]byte, error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(time.Minute))
	var head [4]byte
	if _, err := io.ReadFull(c.nc, head[:]); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return nil, fmt.Errorf("read frame: length %d", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.nc, b); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	return b, nil
}

// Send sends a request and does not wait.
func (c *Conn) Send(xid, op int32, body []byte) error {
	e := jute.NewEncoder(make([]byte, 0, len(body)+8))
	e.Put(jute.RequestHeader{Xid: xid, Op: op})
	return c.WriteFrame(append(e.Bytes(), body...))
}

// Receive reads one reply or notification.
func (c *Conn) Receive() (Reply, error) {
	b, err := c.ReadFrame()
	if err != nil {
		return Reply{}, err
	}
	var r Reply
	if err := jute.NewDecoder(b).Get(&r.ReplyHeader); err != nil {
		return Reply{}, err
	}
	r.Body = b[jute.ReplyHeaderSize:]
	return r, nil
}

// Call sends a request and returns its reply. Notifications that come before
// the reply are put into Events, after those that are there.
func (c *Conn) Call(op int32, body []byte) (Reply, error) {
	c.xid++
	return c.CallXid(c.xid, op, body)
}

// CallXid is Call with the caller's xid.
func (c *Conn) CallXid(xid, op int32, body []byte) (Reply, error) {
	if err := c.Send(xid, op, body); err != nil {
		return Reply{}, err
	}
	for {
		r, err := c.Receive()
		if err != nil {
			return Reply{}, err
		}
		if r.Xid == jute.XidNotification {
			var ev jute.WatcherEvent
			_ = jute.NewDecoder(r.Body).Get(&ev)
			c.Events = append(c.Events, ev)
			continue
		}
		if r.Xid != xid {
			return r, fmt.Errorf("reply to xid %d came for %d", r.Xid, xid)
		}
		if r.Zxid > 0 {
			c.Zxid = r.Zxid
		}
		return r, nil
	}
}

// TakeEvents returns the recorded notifications and forgets them.
func (c *Conn) TakeEvents() []jute.WatcherEvent {
	events := c.Events
	c.Events = nil
	return events
}

// Close ends the session and the connection.
func (c *Conn) Close() {
	if _, err := c.Call(jute.OpClose, nil); err == nil {
		_, _ = c.ReadFrame() // the server closes after its reply
	}
	c.Drop()
}

// Drop closes the connection alone; the session lives on until it expires.
func (c *Conn) Drop() { _ = c.nc.Close() }
