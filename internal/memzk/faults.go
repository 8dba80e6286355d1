package memzk

import (
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// AnyOp stands for every operation in the methods that inject faults.
const AnyOp int32 = 1<<31 - 1

// direction is one of the two ways of a connection.
type direction int

const (
	clientToServer direction = iota
	serverToClient
)

// allAddrs is the key of a fault that concerns every address.
const allAddrs = ""

// faults is what tests have asked for. It is guarded by Server.mu.
type faults struct {
	lose             []*loss
	delays           map[int32]time.Duration
	refuse           map[int32]int32 // code by operation
	hangUp           map[int32]bool
	budget           int // bytes of replies that may wait to be read; 0: any number
	gates            map[gateKey]chan struct{}
	refuseDial       map[string]bool
	loseEvents       map[string]bool
	silentNewSession bool
	hold             func(Held) <-chan struct{}
	skew             time.Duration
}

func newFaults() faults {
	return faults{
		delays: map[int32]time.Duration{}, refuse: map[int32]int32{}, hangUp: map[int32]bool{},
		gates: map[gateKey]chan struct{}{}, refuseDial: map[string]bool{}, loseEvents: map[string]bool{},
	}
}

// Held is a request that has come and was not looked at yet.
type Held struct {
	Addr string // that the client dialed
	Op   int32
	Body []byte // behind the xid and the operation; it must not be changed
}

type gateKey struct {
	addr string
	dir  direction
}

// loss is a reply that will be lost.
type loss struct {
	op          int32
	left        int // requests of op until it strikes
	beforeApply bool
	struck      chan struct{}
}

// fault is what happens to one request.
type fault struct {
	loseBefore, loseAfter bool
	refused               bool
	code                  int32
	delay                 time.Duration
}

// until returns the time before which the reply must not be sent.
func (f fault) until() time.Time {
	if f.delay == 0 {
		return time.Time{}
	}
	return time.Now().Add(f.delay)
}

// take returns what happens to a request of op that has just come.
func (fs *faults) take(op int32) fault {
	f := fault{delay: max(fs.delays[op], fs.delays[AnyOp])}
	f.code, f.refused = fs.refuse[op]
	if op == jute.OpPing {
		return f // "the nth request of any kind" counts no pings
	}
	kept := fs.lose[:0]
	for _, l := range fs.lose {
		if l.op == op || l.op == AnyOp && op != jute.OpCreateSession {
			l.left--
		}
		if l.left > 0 {
			kept = append(kept, l)
			continue
		}
		f.loseBefore = f.loseBefore || l.beforeApply
		f.loseAfter = f.loseAfter || !l.beforeApply
		close(l.struck)
	}
	clear(fs.lose[len(kept):])
	fs.lose = kept
	return f
}

func (fs *faults) refused(addr string) bool { return fs.refuseDial[addr] || fs.refuseDial[allAddrs] }

// LoseReply loses the reply to the nth request of op from now on, counted from
// 1 over all connections, and drops that connection: before the request was
// applied, or after. AnyOp counts every request but pings and handshakes;
// jute.OpCreateSession stands for the handshake. The channel that it returns is
// closed when it strikes.
func (s *Server) LoseReply(op int32, n int, beforeApply bool) <-chan struct{} {
	l := &loss{op: op, left: max(n, 1), beforeApply: beforeApply, struck: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.lose = append(s.faults.lose, l)
	return l.struck
}

// Delay holds every reply to op back for d, and with it what comes after it on
// the same connection; 0 ends it. The request is applied at once.
func (s *Server) Delay(op int32, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.delays[op] = d
}

// Hold asks fn about each request, before it is applied: the request, and what comes
// after it on the same connection, waits until the channel that fn returns is closed.
// nil lets it pass. fn may call the server. Pings and handshakes are not asked about.
// The end of the connection drops the request.
func (s *Server) Hold(fn func(Held) <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.hold = fn
}

// wait holds a request back; false means that the connection has ended.
func (c *conn) wait(p packet) bool {
	c.s.mu.Lock()
	hold, known := c.s.faults.hold, c.session != nil
	c.s.mu.Unlock()
	if hold == nil || !known {
		return true
	}
	var h jute.RequestHeader
	if err := jute.NewDecoder(p.frame).Get(&h); err != nil || h.Op == jute.OpPing {
		return true
	}
	free := hold(Held{Addr: c.addr, Op: h.Op, Body: p.frame[8:]})
	if free == nil {
		return true
	}
	select {
	case <-free:
		return true
	case <-c.ended:
		return false
	}
}

// Skew makes the clock differ that stamps transactions, as that of a new leader may.
func (s *Server) Skew(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.skew = d
}

// Refuse answers op as a server does that does not know it: with the code
// "unimplemented", and by dropping the connection.
func (s *Server) Refuse(op int32) { s.RefuseWith(op, jute.ErrCodeUnimplemented) }

// RefuseWith answers op with an error code from now on, such as
// jute.ErrCodeQuotaExceeded, and does nothing else. Code 0 ends it.
func (s *Server) RefuseWith(op, code int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if code == jute.ErrCodeOK {
		delete(s.faults.refuse, op)
		return
	}
	s.faults.refuse[op] = code
}

// HangUp closes every connection that asks for op, without a word, as a proxy does
// that does not like it. jute.OpCreateSession is answered, and the connection is
// closed behind the answer.
func (s *Server) HangUp(op int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.hangUp[op] = true
}

// Allow ends Refuse, RefuseWith and HangUp.
func (s *Server) Allow(op int32) {
	s.RefuseWith(op, jute.ErrCodeOK)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.faults.hangUp, op)
}

// ByteBudget makes the server die, as one does that runs out of memory, when its
// replies that no client has read yet take more bytes. 0 ends it.
func (s *Server) ByteBudget(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.budget = bytes
}

// Deaths counts how often the server has died of its ByteBudget.
func (s *Server) Deaths() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deaths
}

// MaxUnread returns the most bytes of replies that ever waited to be read.
func (s *Server) MaxUnread() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxUnread
}

// account notes that bytes wait, or no longer wait, to be read over c. It needs
// Server.mu.
func (c *conn) account(bytes int) {
	s := c.s
	c.unread += bytes
	s.unread += bytes
	s.maxUnread = max(s.maxUnread, s.unread)
	if bytes <= 0 || s.faults.budget == 0 || s.unread <= s.faults.budget {
		return
	}
	s.deaths++
	s.stop()
}

// SilentNewSession answers the next client that wants to take its session up
// with another, new session, and does not say that the old one is gone.
func (s *Server) SilentNewSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.silentNewSession = true
}

// LoseEvents loses the watch events for clients of these addresses, all without one,
// until ClearFaults. The watches are gone, as if the events had been sent.
func (s *Server) LoseEvents(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range orAll(addrs) {
		s.faults.loseEvents[a] = true
	}
}

// ExpireSession ends a session now, as if it had not been heard of for its
// timeout. It reports whether there was one.
func (s *Server) ExpireSession(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		return false
	}
	s.expireSession(sess)
	return true
}

// ClearFaults ends everything that this file and network.go began: lost
// replies that have not struck, delays, refusals, cuts.
func (s *Server) ClearFaults() {
	s.Heal()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = newFaults()
}
