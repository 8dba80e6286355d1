package session

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// phase is how far a connection has come.
type phase int

const (
	phaseAsking   phase = iota // the handshake is under way
	phaseOpen                  // requests flow
	phaseDead                  // the socket is closed; the library does not know it yet
	phaseDetached              // we answer the library ourselves, so that it ends cleanly
)

// wire is one connection to a server, frame by frame. It is the net.Conn that the client
// library gets from its dialer. The library uses it only for the handshake, for its
// pings, and to notice the end of the connection. All other requests are our own frames
// with our own xids (requests in call.go). The library never sees their replies.
//
// It repairs the following faults, each with a test that fails without the repair:
//   - Write never fails. The library deadlocks on some write errors. Instead wire
//     closes the socket, and the library notices that in Read.
//   - The handshake is ours: the session id, password and last zxid of this session,
//     the timeout that was configured (the library keeps what it was last granted),
//     and a deadline of min(T/3, 3 s), so that one hung server does not cost a session.
//   - A ping that stays unanswered for T/6 ends the connection.
//   - Replies over the limit are refused before they are read into memory.
//   - A library that puts anything but one whole frame into a Write is refused.
type wire struct {
	s      *Session
	conn   net.Conn
	server string

	kick   chan struct{}   // something to write; holds one
	life   context.Context // over with phaseDead or phaseDetached
	over   context.CancelFunc
	shut   context.Context // over when the library closes its end
	close  context.CancelFunc
	local  chan []byte // frames for the library made here; at most two are ever in it
	asked  time.Time   // when the ConnectRequest was handed to the socket, by Session.clock
	zxid   int64       // the last zxid seen, as in the ConnectRequest
	wantID int64       // the session id in the ConnectRequest
	able   *ability    // the server's

	readOnly atomic.Bool // the server has no majority

	useful  atomic.Bool // a request or a ping was answered, not only what sets the connection up
	proved  atomic.Bool // the probe of takeover.go was answered
	refused atomic.Bool // the latest answer was "unimplemented": the server closes the connection behind it

	mu       sync.Mutex // guards what follows
	phase    phase
	request  bool // the library has sent its ConnectRequest
	answered bool // the library has been given a ConnectResponse
	pending  map[int32]*call
	auths    []*call // the same for xid -4, which all of them have; in order
	xid      int32
	out      []byte // frames to write
	queue    []*call
	hasPing  bool      // out holds a ping
	pingAt   time.Time // when the oldest unanswered ping was written, by Session.clock; zero: none

	// Only the library's reading goroutine touches these.
	in   *bufio.Reader
	rest []byte // what the library has yet to read of a frame
}

const firstXid = -1001 // below every xid with a meaning

func newWire(s *Session, conn net.Conn, server string) *wire {
	w := &wire{
		s: s, conn: conn, server: server, able: s.cfg.abilities.server(server),
		kick:    make(chan struct{}, 1),
		local:   make(chan []byte, 2),
		pending: make(map[int32]*call),
		xid:     firstXid,
	}
	w.life, w.over = context.WithCancel(context.Background())
	w.shut, w.close = context.WithCancel(context.Background())
	if conn == nil {
		w.phase = phaseDetached
		w.over()
		return w
	}
	w.in = bufio.NewReaderSize(conn, 32<<10)
	return w
}

// Read gives the library the frames that are for it, and handles all others on the way.
func (w *wire) Read(p []byte) (int, error) {
	for len(w.rest) == 0 {
		var err error
		if w.life.Err() != nil {
			if w.rest, err = w.nextLocal(); err != nil {
				return 0, err
			}
		} else if w.rest, err = w.receive(); err != nil {
			w.fail(err)
		}
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// nextLocal serves a library whose connection has ended.
func (w *wire) nextLocal() ([]byte, error) {
	w.mu.Lock()
	detached := w.phase == phaseDetached
	w.mu.Unlock()
	if !detached {
		return nil, io.EOF
	}
	select {
	case f := <-w.local:
		return f, nil
	default:
	}
	w.s.hosts.settle()
	// The library waits without an end for the rest of a handshake that a server has
	// garbled, and does not shut the connection then.
	limit, cancel := context.WithTimeout(w.shut, maxHandshake)
	defer cancel()
	select {
	case f := <-w.local:
		return f, nil
	case <-limit.Done():
		return nil, io.EOF
	}
}

// receive reads one frame from the socket and handles it. It returns the frame if it is
// for the library.
func (w *wire) receive() ([]byte, error) {
	frame, err := w.readFrame()
	if err != nil || frame == nil {
		return nil, err
	}
	w.mu.Lock()
	asking := w.phase == phaseAsking
	w.mu.Unlock()
	if asking {
		return w.welcome(frame)
	}
	if len(frame) < jute.ReplyHeaderSize {
		return nil, errors.New("server sent a reply without a header")
	}
	xid := int32(binary.BigEndian.Uint32(frame))
	switch xid {
	case jute.XidNotification:
		return nil, w.event(frame)
	case jute.XidPing:
		w.pong()
		return setLength(append(make([]byte, 4), frame...)), nil
	}
	return nil, w.reply(xid, frame)
}

// readFrame reads one frame without its length. It returns nil without an error
// for a reply that was too large and has been thrown away.
func (w *wire) readFrame() ([]byte, error) {
	head, err := w.in.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head)))
	if n < 0 {
		return nil, fmt.Errorf("server sent a frame of %d bytes", n)
	}
	if n > w.s.cfg.MaxReply {
		return nil, w.refuse(n)
	}
	_, _ = w.in.Discard(4)
	// A long frame arrives in pieces; each shows that the server is there. Memory is
	// taken for what has arrived, and not for a length that may be a lie.
	const step = 64 << 10
	frame := make([]byte, 0, min(n, 4*step))
	for len(frame) < n {
		if len(frame) == cap(frame) {
			frame = append(make([]byte, 0, min(n, 4*cap(frame))), frame...)
		}
		got := len(frame)
		frame = frame[:min(got+step, cap(frame))]
		if _, err := io.ReadFull(w.in, frame[got:]); err != nil {
			return nil, err
		}
		if len(frame) < n {
			w.patience()
		}
	}
	w.s.met.Bytes(false, n+4)
	return frame, nil
}

// refuse throws a reply of n bytes away and fails its request with ErrTooLarge. Otherwise
// the session would ask for it again and again over new connections.
func (w *wire) refuse(n int) error {
	tooLarge := fmt.Errorf("%w: server sent %d bytes, the limit is %d", ErrTooLarge, n, w.s.cfg.MaxReply)
	head, err := w.in.Peek(4 + jute.ReplyHeaderSize)
	if err != nil {
		return err
	}
	c := w.take(int32(binary.BigEndian.Uint32(head[4:])))
	if c == nil {
		return tooLarge
	}
	c.finish(w, tooLarge)
	if n > 16*w.s.cfg.MaxReply {
		return tooLarge
	}
	for left := n + 4; left > 0; {
		k, err := w.in.Discard(min(left, 64<<10))
		if err != nil {
			return err
		}
		left -= k
		w.patience()
	}
	return nil
}

// Close is called by the library when it is done with the connection.
func (w *wire) Close() error {
	w.close()
	w.fail(net.ErrClosed)
	return nil
}

// The deadlines of wire_write.go replace those of the library.

func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }
func (w *wire) LocalAddr() net.Addr              { return wireAddr(w.server) }
func (w *wire) RemoteAddr() net.Addr             { return wireAddr(w.server) }

type wireAddr string

func (a wireAddr) Network() string { return "tcp" }
func (a wireAddr) String() string  { return string(a) }
