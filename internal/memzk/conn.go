package memzk

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

// conn is one connection. Three goroutines serve it: read puts what comes into
// in, run handles it and puts the answers into out, send writes them. The
// queues stand for the network: a direction that is cut is a queue that grows.
type conn struct {
	s      *Server
	nc     net.Conn
	addr   string // that the client dialed; faults name it
	ip     string
	in     *queue[packet]
	out    *queue[answer]
	ended  context.Context // over after end: nothing more is handled; what is in out is still sent
	killed context.Context // over after kill: nothing more is sent

	stopHandling, stopSending context.CancelFunc

	// Guarded by Server.mu.
	session        *session // nil before the handshake
	replica        *replica
	ids            []identity
	nonce          string // of the SASL challenge; "": none was sent
	since          time.Time
	received, sent uint64
	unread         int
}

// packet is what came over a connection: a frame, a four-letter word, or the
// end.
type packet struct {
	frame []byte
	word  string
	eof   bool
}

// answer is what goes out: a frame with its length, not before a time, or the
// end.
type answer struct {
	frame []byte
	at    time.Time
	close bool
}

// read reads frames until the connection or its right to send ends.
func (c *conn) read() {
	r := bufio.NewReader(c.nc)
	for first := true; ; first = false {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			break
		}
		if first && slices.Contains(fourLetterWords, string(head[:])) {
			c.in.push(packet{word: string(head[:])})
			return
		}
		n := int64(binary.BigEndian.Uint32(head[:])) // a negative length is a large one
		if n > int64(c.s.opts.MaxFrame) {
			c.s.opts.Logger.Warn("frame refused", "length", n)
			break
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(r, frame); err != nil {
			break
		}
		c.in.push(packet{frame: frame})
	}
	c.in.push(packet{eof: true})
}

// run handles packets one after another until the connection ends.
func (c *conn) run() {
	for {
		p, ok := c.in.pop(c.ended.Done())
		var request []byte
		if c.session != nil { // only this goroutine sets it
			request = p.frame
		}
		if !ok || !c.s.opts.Faults.Receive(c.addr, request, c.ended.Done()) || p.eof {
			break
		}
		c.s.mu.Lock()
		// end may have been called while this goroutine waited for the mutex.
		more := c.ended.Err() == nil && c.handle(p)
		c.s.mu.Unlock()
		if !more {
			break
		}
	}
	c.s.mu.Lock()
	c.end()
	c.s.mu.Unlock()
}

// send sends answers in their order, then closes the connection.
func (c *conn) send() {
	defer func() {
		_ = c.nc.Close()
		c.s.mu.Lock()
		delete(c.s.conns, c)
		c.account(-c.unread)
		c.s.mu.Unlock()
	}()
	for {
		a, ok := c.out.pop(c.killed.Done())
		if !ok || !pace.Sleep(c.killed, time.Until(a.at)) || !c.s.opts.Faults.Send(c.addr, c.killed.Done()) || a.close {
			return
		}
		rest, err := a.frame, error(nil)
		if len(rest) > onePiece {
			_, err = c.nc.Write(rest[:len(rest)-1])
			rest = rest[len(rest)-1:]
		}
		c.s.mu.Lock()
		c.account(-len(a.frame)) // before the client has it all, and asks for more
		c.s.mu.Unlock()
		if err == nil {
			_, err = c.nc.Write(rest)
		}
		if err != nil {
			return
		}
	}
}

// onePiece is the size up to which a reply leaves in one piece. Clients read the answer
// to a four-letter word with one call.
const onePiece = 4096

// end takes the connection out of the server; what is queued is still sent. It
// needs Server.mu.
func (c *conn) end() {
	if c.ended.Err() != nil {
		return
	}
	c.stopHandling()
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	c.replica.dataWatches.forget(c)
	c.replica.childWatches.forget(c)
	c.out.push(answer{close: true})
}

// kill ends the connection without sending what is queued. It needs Server.mu.
func (c *conn) kill() {
	c.end()
	c.stopSending()
}

// push queues a frame. It needs Server.mu.
func (c *conn) push(body []byte, at time.Time) {
	if c.ended.Err() != nil {
		return
	}
	frame := encoded(body)
	c.sent++
	c.out.push(answer{frame: frame, at: at})
	c.account(len(frame))
}

// account notes that bytes wait, or no longer wait, to be read. It needs Server.mu.
func (c *conn) account(bytes int) {
	c.unread += bytes
	if c.s.opts.Faults.Queue(bytes) {
		c.s.stop()
	}
}

// notify queues a watch event. It needs Server.mu.
func (c *conn) notify(event int32, path string) {
	if c.s.opts.Faults.LoseEvent(c.addr) {
		return
	}
	header := jute.ReplyHeader{Xid: jute.XidNotification, Zxid: -1}
	c.push(encoded(header, jute.WatcherEvent{Type: event, State: jute.StateSyncConnected, Path: path}), time.Time{})
}

func encoded(values ...any) []byte {
	var e jute.Encoder
	e.Put(values...)
	return e.Bytes()
}

// queue passes values from any goroutine to one that pops. It has no limit: it
// stands for a network and its buffers, which must not block the server.
type queue[T any] struct {
	mu    sync.Mutex // guards items
	items []T
	wake  chan struct{} // has one value when items may have become non-empty
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	pace.Notify(q.wake)
}

// pop waits for a value; false means that stop was closed.
func (q *queue[T]) pop(stop <-chan struct{}) (T, bool) {
	var zero T
	for {
		select {
		case <-stop:
			return zero, false
		default:
		}
		q.mu.Lock()
		if len(q.items) > 0 {
			v := q.items[0]
			q.items[0] = zero
			q.items = q.items[1:]
			q.mu.Unlock()
			return v, true
		}
		q.items = nil
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-stop:
			return zero, false
		}
	}
}

// handshake handles the first frame; false ends the connection.
func (c *conn) handshake(frame []byte) bool {
	s := c.s
	s.requests[jute.OpCreateSession]++
	var req jute.ConnectRequest
	if jute.NewDecoder(frame).Get(&req) != nil {
		return false
	}
	if req.LastZxidSeen > c.replica.tree.zxid {
		s.opts.Logger.Info("client has seen a later zxid", "zxid", req.LastZxidSeen)
		return false
	}
	if s.readOnly && (req.ReadOnly == nil || !*req.ReadOnly || req.SessionID != 0) {
		return false
	}
	f := s.opts.Faults.Strike(jute.OpCreateSession, frame)
	if f.Drop {
		return false
	}
	timeout := s.clamp(time.Duration(req.Timeout) * time.Millisecond)
	sess := c.findSession(&req, timeout, f.NewSession)
	if sess != nil {
		sess.conn = c
		c.session = sess
	}
	if f.Lose {
		return false
	}
	r := jute.ConnectResponse{Password: make([]byte, 16)}
	if req.ReadOnly != nil {
		r.ReadOnly = &s.readOnly
	}
	if sess != nil {
		r.Timeout, r.SessionID, r.Password = int32(sess.timeout.Milliseconds()), sess.id, sess.password //nolint:gosec // It came as 32 bits.
	}
	c.push(encoded(r), f.At)
	return sess != nil && !f.Close
}

// findSession opens or takes up the session that the client asks for; nil means
// that it is gone. A connection that already has the session is ended first,
// even when the password then turns out to be wrong, as 3.8 does.
func (c *conn) findSession(req *jute.ConnectRequest, timeout time.Duration, another bool) *session {
	s := c.s
	if req.SessionID == 0 {
		return s.openSession(timeout)
	}
	sess := s.sessions[req.SessionID]
	if another {
		if sess != nil {
			s.expireSession(sess)
		}
		return s.openSession(timeout)
	}
	if sess == nil {
		return nil
	}
	if old := sess.conn; old != nil {
		old.end()
	}
	if subtle.ConstantTimeCompare(sess.password, req.Password) == 0 {
		return nil
	}
	sess.timeout = timeout
	s.touch(sess)
	pace.Notify(s.wake)
	return sess
}

// auth checks a credential; a wrong one ends the connection after the reply.
func (c *conn) auth(xid int32, d *jute.Decoder) bool {
	var kind int32 // is not used
	var scheme string
	var credential []byte
	if d.Get(&kind, &scheme, &credential) != nil {
		return false
	}
	code := jute.ErrCodeOK
	switch scheme {
	case "digest":
		digest := jute.Digest(string(credential))
		if c.s.opts.SuperDigest != "" && digest == c.s.opts.SuperDigest {
			c.addIdentity(identity{superScheme, ""})
		}
		c.addIdentity(identity{"digest", digest})
	case "ip":
		c.addIdentity(identity{"ip", c.ip})
	default:
		code = jute.ErrCodeAuthFailed
	}
	c.reply(xid, 0, code, time.Time{})
	return code == jute.ErrCodeOK
}

func (c *conn) addIdentity(i identity) {
	if !slices.Contains(c.ids, i) {
		c.ids = append(c.ids, i)
	}
}

// SASL DIGEST-MD5 (RFC 2831) as a server with a JAAS file does it: a challenge for
// the first token, an answer that proves the password for the second.

// saslRealm is the realm of ZooKeeper's servers.
const saslRealm = "zk-sasl-md5"

// sasl handles one token; false ends the connection.
func (c *conn) sasl(xid int32, d *jute.Decoder) bool {
	token := d.Buffer()
	switch users := c.s.opts.SASLUsers; {
	case users == nil:
		// As a server without SASL: no token, and the client is on its own.
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, []byte(nil))
		return true
	case c.nonce == "":
		c.nonce = rand.Text()
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, fmt.Sprintf(`realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess`, saslRealm, c.nonce))
		return true
	default:
		said, _ := jute.ParseDirectives(string(token)) // nil proves nothing
		password, ok := users[said["username"]]
		if !ok || said["nonce"] != c.nonce || said["digest-uri"] != jute.DigestURI || said["response"] != c.saslDigest("AUTHENTICATE", password, said) {
			c.reply(xid, 0, jute.ErrCodeAuthFailed, time.Time{})
			return false
		}
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, "rspauth="+c.saslDigest("", password, said))
		c.addIdentity(identity{"sasl", said["username"]})
		return true
	}
}

func (c *conn) saslDigest(method, password string, said map[string]string) string {
	return jute.DigestResponse(method, said["username"], saslRealm, password, c.nonce, said["cnonce"])
}

// unproved reports whether the server insists on SASL and the client has not done it.
func (c *conn) unproved(op int32) bool {
	return c.s.opts.RequireSASL && op != jute.OpPing && op != jute.OpClose &&
		!slices.ContainsFunc(c.ids, func(i identity) bool { return i.scheme == "sasl" })
}
