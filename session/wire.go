package session

import (
	"bufio"
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
	phaseAsking phase = iota // the handshake is under way
	phaseOpen                // requests flow
	phaseDead                // the socket is closed
)

// wire is one connection to a server, frame by frame. One goroutine reads, another one
// writes and pings. An error of either ends the connection, and run dials the next server.
type wire struct {
	s      *Session
	conn   net.Conn
	server string

	kick   chan struct{}      // something to write; holds one
	gone   chan struct{}      // closed with phaseDead
	opened chan time.Duration // holds one: the session timeout, when requests may flow
	asked  time.Time          // when the ConnectRequest was handed to the socket, by Session.clock
	zxid   int64              // the last zxid seen, as in the ConnectRequest
	wantID int64              // the session id in the ConnectRequest
	able   *ability           // the server's

	readOnly atomic.Bool // the server has no majority

	useful  atomic.Bool // a request or a ping was answered, not only what sets the connection up
	proved  atomic.Bool // the probe of takeover.go was answered
	refused atomic.Bool // the latest answer was "unimplemented": the server closes the connection behind it

	mu      sync.Mutex // guards what follows
	phase   phase
	pending map[int32]*call
	auths   []*call // the same for xid -4, which all of them have; in order
	xid     int32
	out     []byte // frames to write
	queue   []*call
	hasPing bool      // out holds a ping
	pingAt  time.Time // when the oldest unanswered ping was written, by Session.clock; zero: none

	in *bufio.Reader // of the reading goroutine
}

const firstXid = -1001 // below every xid with a meaning

func newWire(s *Session, conn net.Conn, server string) *wire {
	return &wire{
		s: s, conn: conn, server: server, able: s.cfg.abilities.server(server),
		kick:    make(chan struct{}, 1),
		gone:    make(chan struct{}),
		opened:  make(chan time.Duration, 1),
		pending: make(map[int32]*call),
		xid:     firstXid,
		in:      bufio.NewReaderSize(conn, 32<<10),
	}
}

// read asks for the session, and handles what the server sends until the connection ends.
func (w *wire) read() {
	w.ask(w.s.connectRequest())
	for {
		select {
		case <-w.gone:
			return
		default:
		}
		if err := w.receive(); err != nil {
			w.fail(err)
		}
	}
}

// receive reads one frame and handles it.
func (w *wire) receive() error {
	frame, err := w.readFrame()
	if err != nil || frame == nil {
		return err
	}
	w.mu.Lock()
	asking := w.phase == phaseAsking
	w.mu.Unlock()
	if asking {
		return w.welcome(frame)
	}
	if len(frame) < jute.ReplyHeaderSize {
		return errors.New("server sent a reply without a header")
	}
	xid := int32(binary.BigEndian.Uint32(frame))
	switch xid {
	case jute.XidNotification:
		return w.event(frame)
	case jute.XidPing:
		w.pong()
		return nil
	}
	return w.reply(xid, frame)
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
