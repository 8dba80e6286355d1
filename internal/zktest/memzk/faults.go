package memzk

import (
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/memzk"
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

// faults is what tests have asked for, and what it led to. It is the server's
// memzk.Faults.
type faults struct {
	mu sync.Mutex // guards everything that follows
	wanted
	paused    chan struct{}    // not nil between Pause and Resume, which closes it
	counted   map[int32]uint64 // requests at the last ResetRequests
	unread    int              // bytes of replies that no client has read yet
	maxUnread int
	deaths    int
}

// wanted is what ClearFaults ends.
type wanted struct {
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

func newFaults() *faults { return &faults{wanted: nothing()} }

func nothing() wanted {
	return wanted{
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

// Strike returns what happens to a request of op that has just come.
func (fs *faults) Strike(op int32, body []byte) memzk.Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := memzk.Fault{Code: fs.refuse[op]}
	if d := max(fs.delays[op], fs.delays[AnyOp]); d > 0 {
		f.At = time.Now().Add(d)
	}
	if op == jute.OpPing {
		f.Drop = fs.hangUp[op]
		return f // "the nth request of any kind" counts no pings
	}
	f.Drop, f.Lose = fs.strike(op)
	switch {
	case op != jute.OpCreateSession:
		f.Drop = f.Drop || fs.hangUp[op] || fs.hangUp[AnyOp]
	case !f.Drop:
		f.Close = fs.hangUp[op]
		f.NewSession = fs.silentNewSession && resumes(body)
		fs.silentNewSession = fs.silentNewSession && !f.NewSession
	}
	return f
}

// strike counts a request. It returns whether a loss before it, or one behind it,
// strikes.
func (fs *faults) strike(op int32) (bool, bool) {
	before, after := false, false
	kept := fs.lose[:0]
	for _, l := range fs.lose {
		if l.op == op || l.op == AnyOp && op != jute.OpCreateSession {
			l.left--
		}
		if l.left > 0 {
			kept = append(kept, l)
			continue
		}
		before = before || l.beforeApply
		after = after || !l.beforeApply
		close(l.struck)
	}
	clear(fs.lose[len(kept):])
	fs.lose = kept
	return before, after
}

// resumes reports whether a handshake asks for a session that exists.
func resumes(handshake []byte) bool {
	var req jute.ConnectRequest
	return jute.NewDecoder(handshake).Get(&req) == nil && req.SessionID != 0
}

// concerns reports whether names have one of addr, or the one that stands for all.
func concerns(names map[string]bool, addr string) bool {
	return names[allAddrs] || slices.ContainsFunc(memzk.Names(addr), func(n string) bool { return names[n] })
}

// Refuse is of memzk.Faults, as are the methods below.
func (fs *faults) Refuse(addr string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return concerns(fs.refuseDial, addr)
}

func (fs *faults) LoseEvent(addr string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return concerns(fs.loseEvents, addr)
}

func (fs *faults) Now() time.Time {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return time.Now().Add(fs.skew)
}

func (fs *faults) Queue(bytes int) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.unread += bytes
	fs.maxUnread = max(fs.maxUnread, fs.unread)
	if bytes <= 0 || fs.budget == 0 || fs.unread <= fs.budget {
		return false
	}
	fs.deaths++
	return true
}

func (fs *faults) Send(addr string, stop <-chan struct{}) bool {
	return fs.pass(addr, serverToClient, stop)
}

func (fs *faults) Receive(addr string, request []byte, stop <-chan struct{}) bool {
	if !fs.pass(addr, clientToServer, stop) {
		return false
	}
	fs.mu.Lock()
	hold := fs.hold
	fs.mu.Unlock()
	if hold == nil || request == nil {
		return true
	}
	var h jute.RequestHeader
	if err := jute.NewDecoder(request).Get(&h); err != nil || h.Op == jute.OpPing {
		return true
	}
	free := hold(Held{Addr: addr, Op: h.Op, Body: request[8:]})
	if free == nil {
		return true
	}
	select {
	case <-free:
		return true
	case <-stop:
		return false
	}
}

// LoseReply loses the reply to the nth request of op from now on, counted from
// 1 over all connections, and drops that connection: before the request was
// applied, or after. AnyOp counts every request but pings and handshakes;
// jute.OpCreateSession stands for the handshake. The channel that it returns is
// closed when it strikes.
func (s *Server) LoseReply(op int32, n int, beforeApply bool) <-chan struct{} {
	l := &loss{op: op, left: max(n, 1), beforeApply: beforeApply, struck: make(chan struct{})}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.lose = append(s.faults.lose, l)
	return l.struck
}

// Delay holds every reply to op back for d, and with it what comes after it on
// the same connection; 0 ends it. The request is applied at once.
func (s *Server) Delay(op int32, d time.Duration) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.delays[op] = d
}

// Hold asks fn about each request, before it is applied: the request, and what comes
// after it on the same connection, waits until the channel that fn returns is closed.
// nil lets it pass. fn may call the server. Pings and handshakes are not asked about.
// The end of the connection drops the request.
func (s *Server) Hold(fn func(Held) <-chan struct{}) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.hold = fn
}

// Skew makes the clock differ that stamps transactions, as that of a new leader may.
func (s *Server) Skew(d time.Duration) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.skew = d
}

// Refuse answers op as a server does that does not know it: with the code
// "unimplemented", and by dropping the connection.
func (s *Server) Refuse(op int32) { s.RefuseWith(op, jute.ErrCodeUnimplemented) }

// RefuseWith answers op with an error code from now on, such as
// jute.ErrCodeQuotaExceeded, and does nothing else. Code 0 ends it.
func (s *Server) RefuseWith(op, code int32) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
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
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.hangUp[op] = true
}

// Allow ends Refuse, RefuseWith and HangUp.
func (s *Server) Allow(op int32) {
	s.RefuseWith(op, jute.ErrCodeOK)
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	delete(s.faults.hangUp, op)
}

// ByteBudget makes the server die, as one does that runs out of memory, when its
// replies that no client has read yet take more bytes. 0 ends it.
func (s *Server) ByteBudget(bytes int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.budget = bytes
}

// Deaths counts how often the server has died of its ByteBudget.
func (s *Server) Deaths() int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.deaths
}

// MaxUnread returns the most bytes of replies that ever waited to be read.
func (s *Server) MaxUnread() int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.maxUnread
}

// SilentNewSession answers the next client that wants to take its session up
// with another, new session, and does not say that the old one is gone.
func (s *Server) SilentNewSession() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.silentNewSession = true
}

// LoseEvents loses the watch events for clients of these addresses, all without one,
// until ClearFaults. The watches are gone, as if the events had been sent.
func (s *Server) LoseEvents(addrs ...string) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, a := range orAll(addrs) {
		s.faults.loseEvents[a] = true
	}
}

// ClearFaults ends everything that this file and network.go began: lost
// replies that have not struck, delays, refusals, cuts.
func (s *Server) ClearFaults() {
	s.Heal()
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.wanted = nothing()
}
