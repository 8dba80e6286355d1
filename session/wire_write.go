package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
)

var errFraming = errors.New("the client library does not write one frame at a time")

// Write accepts a frame of the library. It never returns an error: a write error makes
// the library hang forever in some places. Its reader notices the end of the connection
// anyway.
func (w *wire) Write(b []byte) (int, error) {
	if err := w.fromLibrary(b); err != nil {
		w.s.log.Error("ending the connection: the client library wrote a frame that cannot be sent", "err", err)
		w.fail(err)
	}
	return len(b), nil
}

func (w *wire) fromLibrary(b []byte) error {
	if len(b) < 12 || int(binary.BigEndian.Uint32(b)) != len(b)-4 {
		return errFraming
	}
	ours := w.s.connectRequest() // before w.mu: the session's lock comes first
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.request {
		// The first frame of a connection is the ConnectRequest, 44 or 45 bytes.
		if n := len(b) - 4; n != 44 && n != 45 {
			return errFraming
		}
		w.request = true
		w.ask(ours)
		return nil
	}
	xid, op := int32(binary.BigEndian.Uint32(b[4:])), int32(binary.BigEndian.Uint32(b[8:]))
	switch {
	case op == jute.OpClose:
		// Ours to send or not: a hand-over ends the connection but not the session.
		w.answerLocally(packet(jute.ReplyHeader{Xid: xid}))
	case xid == jute.XidPing && w.phase == phaseOpen:
		w.out = append(w.out, b...)
		w.hasPing = true
		pace.Notify(w.kick)
	}
	return nil
}

// ask replaces the library's ConnectRequest by ours. w.mu is held.
func (w *wire) ask(req jute.ConnectRequest) {
	if w.phase == phaseDetached {
		w.answerLocally(peaceful())
		return
	}
	if w.phase != phaseAsking {
		return
	}
	w.zxid, w.wantID, w.asked = req.LastZxidSeen, req.SessionID, w.s.clock()
	w.out = append(w.out, packet(req)...)
	pace.Notify(w.kick)
}

// answerLocally gives the library a frame that we made. w.mu is held.
func (w *wire) answerLocally(frame []byte) {
	select {
	case w.local <- frame:
	default: // the library asked twice; it gets one answer
	}
}

// peaceful returns a ConnectResponse that satisfies the library while we end it.
func peaceful() []byte { return forLibrary(1, 60_000) }

// maxSpare bounds the buffer that a connection keeps for its next writes: a
// connection lives for months, and its largest request is often its first.
const maxSpare = 32 << 10

// writeLoop writes the queued frames, all at once, until the connection ends. The dialer
// waits for its end.
func (w *wire) writeLoop() {
	var spare []byte
	for {
		select {
		case <-w.kick:
		case <-w.life.Done():
			return
		}
		for {
			buf, calls, ok := w.swap(spare)
			if !ok {
				break
			}
			n, err := w.conn.Write(buf)
			w.s.met.Bytes(true, n)
			if err != nil {
				w.unsent(calls, n)
				w.fail(err)
				return
			}
			if spare = buf; cap(spare) > maxSpare {
				spare = nil
			}
		}
	}
}

// swap takes the queued frames and notes the time. The lease counts from this time, which
// is never later than the moment when the server receives them.
func (w *wire) swap(spare []byte) ([]byte, []*call, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.out) == 0 || w.phase > phaseOpen {
		return nil, nil, false
	}
	now, stamp := time.Now(), w.s.clock()
	buf, calls := w.out, w.queue
	w.out, w.queue = spare[:0], nil
	for _, c := range calls {
		c.sent, c.sentAt = true, stamp
	}
	if w.hasPing {
		w.hasPing = false
		// Only replies stop this limit. A server that sends events but does not receive our
		// requests makes a connection look alive while the session expires.
		if w.pingAt.IsZero() {
			w.pingAt = stamp
		}
		_ = w.conn.SetReadDeadline(now.Add(pingLimit(w.s.Timeout())))
	}
	_ = w.conn.SetWriteDeadline(now.Add(max(w.s.Timeout()/3, minHandshake)))
	return buf, calls, true
}

// unsent marks the calls whose frames the socket did not accept completely. A server that
// refuses a frame for its length ends the connection in the middle of the frame.
func (w *wire) unsent(calls []*call, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range calls {
		if c.end > n && w.pending[c.xid] == c { // not yet handed back
			c.sent, c.partly = false, n > c.end-len(c.frame)
		}
	}
}

// send queues c. It returns false when the connection has ended.
func (w *wire) send(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.phase != phaseOpen {
		return false
	}
	w.put(c)
	return true
}

// put queues c. w.mu is held.
func (w *wire) put(c *call) {
	if c.xid == 0 {
		c.xid = w.xid
		if w.xid--; w.xid > firstXid {
			w.xid = firstXid // wrapped
		}
	}
	putXid(c.frame, c.xid)
	w.pending[c.xid] = c
	c.queued = time.Now()
	w.out = append(w.out, c.frame...)
	c.end = len(w.out)
	w.queue = append(w.queue, c)
	w.s.counts[opIndex(c.op)].Add(1)
	w.s.met.Sent()
	pace.Notify(w.kick)
}

// fail ends the connection. It closes the socket and ends every call with the error that
// its reply is lost. The library then connects again.
func (w *wire) fail(err error) {
	calls, was, ok := w.bury(phaseDead)
	if !ok {
		return
	}
	if was == phaseAsking {
		err = refusedTLS(err)
		w.s.hosts.noTLS(w.server, fmt.Errorf("%s: %w", w.server, err))
	}
	w.s.lost(w, was, calls, err)
	if w.readOnly.Load() { // a session of such a server ends with its connection
		w.s.end(Closed, fmt.Errorf("%w: the connection to a read-only server ended: %w", ErrClosed, err))
	}
	for _, c := range calls {
		c.finish(w, errLost)
	}
}

// detach ends the connection too, but the library does not notice it. So the library's
// close request is answered at once.
func (w *wire) detach() {
	calls, _, ok := w.bury(phaseDetached)
	if !ok {
		return
	}
	for _, c := range calls {
		c.finish(w, errLost)
	}
}

// bury puts the connection into its last phase, once. It returns the calls that remain
// unanswered and the previous phase.
func (w *wire) bury(to phase) ([]*call, phase, bool) {
	w.mu.Lock()
	was := w.phase
	if was >= phaseDead {
		w.mu.Unlock()
		return nil, was, false
	}
	w.phase = to
	calls := slices.Collect(maps.Values(w.pending))
	w.pending = nil
	if to == phaseDetached && w.request && !w.answered {
		w.answerLocally(peaceful())
	}
	w.mu.Unlock()
	_ = w.conn.Close()
	w.over()
	return calls, was, true
}

// take removes and returns the call with this xid. It returns nil for an unknown xid, and
// for a call that was not written yet, because the server cannot have answered it.
func (w *wire) take(xid int32) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.pending[xid]
	if c == nil || !c.sent {
		return nil
	}
	delete(w.pending, xid)
	return c
}

// Time limits of one connection; T is the session timeout. The lower bounds keep
// very short sessions from giving up over the scheduling of a busy machine.
//
//	handshake, with dialing     min(T/3, 3 s)
//	a ping without answer       T/6
//	silence between pings       T/2 (pings go out every T/3)
const (
	maxHandshake = 3 * time.Second
	minHandshake = 250 * time.Millisecond
	minPingWait  = 100 * time.Millisecond
)

func handshakeLimit(timeout time.Duration) time.Duration {
	return max(min(timeout/3, maxHandshake), minHandshake)
}

func pingLimit(timeout time.Duration) time.Duration {
	return max(timeout/6, minPingWait)
}

func (w *wire) pong() {
	w.mu.Lock()
	at := w.pingAt
	w.pingAt = time.Time{}
	if w.phase == phaseOpen {
		_ = w.conn.SetReadDeadline(time.Now().Add(idleLimit(w.s.Timeout())))
	}
	w.mu.Unlock()
	if !at.IsZero() {
		w.useful.Store(true)
		w.heard(at, 0)
	}
}

func idleLimit(timeout time.Duration) time.Duration { return timeout/3 + pingLimit(timeout) }

// patience prolongs the wait for a ping's answer, because replies are arriving and the
// answer comes after them.
func (w *wire) patience() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pingAt.IsZero() && w.phase == phaseOpen {
		_ = w.conn.SetReadDeadline(time.Now().Add(pingLimit(w.s.Timeout())))
	}
}
