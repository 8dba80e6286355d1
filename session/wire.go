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

	mu       sync.Mutex // guards the fields below
	phase    phase
	request  bool // the library has sent its ConnectRequest
	answered bool // the library has been given a ConnectResponse
	pending  map[int32]*call
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
		var h jute.ReplyHeader
		var e jute.WatcherEvent
		if err := jute.NewDecoder(frame).Get(&h, &e); err != nil {
			return nil, fmt.Errorf("notification: %w", err)
		}
		w.s.log.Debug("watch event", "type", e.Type, "path", strip(w.s.cfg.Chroot, e.Path))
		w.s.watches.fire(e.Type, e.Path)
		return nil, nil
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

// connectRequest asks for this session, or for a new one when it has none yet.
func (s *Session) connectRequest() jute.ConnectRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A read-only server will do for a session that was made for one, or if the session is
	// new and all servers were tried.
	readOnly := s.cfg.ReadOnly && s.id == 0 && (s.reader.Load() || s.hosts.failed > len(s.hosts.servers))
	return jute.ConnectRequest{
		LastZxidSeen: s.zxid.Load(),
		Timeout:      int32(s.cfg.Timeout / time.Millisecond),
		SessionID:    s.id,
		Password:     s.password,
		ReadOnly:     &readOnly,
	}
}

// welcome handles the server's answer to the handshake and returns the frame for the
// library. It hides from the library that a session is gone: the library would start a
// new one by itself.
func (w *wire) welcome(frame []byte) ([]byte, error) {
	if refusedReadOnly(frame) {
		return nil, errors.New("handshake: the server is read-only and may make no session (it has no localSessionsEnabled)")
	}
	var r jute.ConnectResponse
	if err := jute.NewDecoder(frame).Get(&r); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	readOnly := r.ReadOnly != nil && *r.ReadOnly
	switch {
	case readOnly && (r.SessionID == 0 || r.Timeout <= 0 || w.wantID != 0 && r.SessionID != w.wantID):
		return nil, errors.New("handshake: the server is read-only and does not know the session")
	case r.SessionID == 0 || r.Timeout <= 0:
		if w.wantID == 0 {
			return nil, fmt.Errorf("handshake: %s gave no session", w.server)
		}
		w.s.expire("the server says so")
		return nil, nil
	case w.wantID != 0 && r.SessionID != w.wantID:
		w.s.expire("the server answered with another session, " + hexID(r.SessionID))
		return nil, nil
	case len(r.Password) > passwordLength:
		return nil, fmt.Errorf("handshake: %s gave a password of %d bytes", w.server, len(r.Password))
	case !w.s.cfg.mayGrant(granted(r)):
		return nil, fmt.Errorf("handshake: %s gave a session timeout of %s, where %s was asked for", w.server, granted(r), w.s.cfg.Timeout)
	}
	if w.s.reader.Load() && !readOnly {
		frame := newFrame(jute.OpClose) // of the session that was just made
		putXid(frame, firstXid)
		_, _ = w.conn.Write(frame)
		return nil, w.s.leaveReader(w.server)
	}
	if m := w.s.cfg.SASL; m != nil {
		if err := w.prove(m); err != nil {
			return nil, w.s.unproven(w.server, "SASL "+m.Name(), err)
		}
	}
	for _, a := range w.s.cfg.Auth {
		if _, err := w.round(jute.OpAuth, jute.XidAuth, newFrame(jute.OpAuth, int32(0), a.Scheme, a.Data)); err != nil {
			return nil, w.s.unproven(w.server, "scheme "+a.Scheme, err)
		}
	}
	if w.readOnly.Store(readOnly); !w.s.attach(w, r) {
		return nil, nil
	}
	return forLibrary(r.SessionID, r.Timeout), nil
}

// passwordLength is what every server gives a session.
const passwordLength = 16

// forLibrary returns the ConnectResponse that the library gets. It holds nothing else of
// the server's: the library repeats what it was given in its next ConnectRequest.
func forLibrary(id int64, timeout int32) []byte {
	return packet(jute.ConnectResponse{Timeout: timeout, SessionID: id, Password: make([]byte, passwordLength)})
}

// granted returns the session timeout that the server chose.
func granted(r jute.ConnectResponse) time.Duration {
	return time.Duration(r.Timeout) * time.Millisecond
}

// refusedReadOnly reports whether a server refused the handshake because it has no
// majority.
func refusedReadOnly(frame []byte) bool {
	var h jute.ReplyHeader
	_ = jute.NewDecoder(frame).Get(&h)
	return len(frame) == jute.ReplyHeaderSize && h.Err == jute.ErrCodeNotReadOnly
}

// unproven handles an identity that the server has not accepted. A new session ends when the server
// refuses the identity: another try needs another credential. An existing session tries
// again, because it may own znodes.
func (s *Session) unproven(server, how string, err error) error {
	err = fmt.Errorf("%s: %w", how, err)
	s.log.Error("authentication failed", "server", server, "err", err)
	if errors.Is(err, ErrAuthFailed) && s.ID() == 0 {
		s.end(Closed, fmt.Errorf("%w: %s: %w", ErrClosed, server, err))
	}
	return err
}

// setUp queues a frame that must come before all requests. It returns false when the
// connection has ended meanwhile.
func (w *wire) setUp(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseAsking {
		return false
	}
	w.put(c)
	return true
}

// open lets requests use the connection. It returns false when the connection has ended
// meanwhile.
func (w *wire) open(timeout time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseAsking {
		return false
	}
	w.phase, w.answered = phaseOpen, true
	_ = w.conn.SetDeadline(time.Time{})
	_ = w.conn.SetReadDeadline(time.Now().Add(idleLimit(timeout)))
	return true
}

func putXid(frame []byte, xid int32) { binary.BigEndian.PutUint32(frame[4:], uint32(xid)) }
