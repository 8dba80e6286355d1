package session

import (
	"fmt"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// ask queues the ConnectRequest.
func (w *wire) ask(req jute.ConnectRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zxid, w.wantID, w.asked = req.LastZxidSeen, req.SessionID, w.s.clock()
	w.out = append(w.out, packet(req)...)
	w.wake()
}

// ping queues a ping.
func (w *wire) ping() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, packet(jute.RequestHeader{Xid: jute.XidPing, Op: jute.OpPing})...)
	w.hasPing = true
	w.wake()
}

func (w *wire) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// maxSpare bounds the buffer that a connection keeps for what it writes next: a
// connection lives for months, and its largest request is often its first.
const maxSpare = 32 << 10

// writeLoop writes the queued frames, all at once, until the connection ends. It pings
// three times in a session timeout.
func (w *wire) writeLoop() {
	var spare []byte
	var beat <-chan time.Time
	for {
		select {
		case timeout := <-w.opened:
			ticker := time.NewTicker(timeout / 3)
			defer ticker.Stop()
			beat = ticker.C
			continue
		case <-beat:
			w.ping()
		case <-w.kick:
		case <-w.gone:
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
		w.pingWritten(now, stamp)
	}
	_ = w.conn.SetWriteDeadline(now.Add(w.s.writeLimit()))
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
	if c.xid == jute.XidAuth {
		w.auths = append(w.auths, c)
	} else {
		w.pending[c.xid] = c
	}
	c.queued = time.Now()
	w.out = append(w.out, c.frame...)
	c.end = len(w.out)
	w.queue = append(w.queue, c)
	w.s.counts[opIndex(c.op)].Add(1)
	w.s.met.Sent()
	w.wake()
}

// fail ends the connection. It closes the socket and ends every call with the error that
// its reply is lost. The session then connects again.
func (w *wire) fail(err error) {
	calls, was, ok := w.bury()
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

// detach ends the connection of a session that has ended.
func (w *wire) detach() {
	calls, _, _ := w.bury()
	for _, c := range calls {
		c.finish(w, errLost)
	}
}

// bury puts the connection into its last phase, once. It returns the calls that remain
// unanswered and the previous phase.
func (w *wire) bury() ([]*call, phase, bool) {
	w.mu.Lock()
	was := w.phase
	if was == phaseDead {
		w.mu.Unlock()
		return nil, was, false
	}
	w.phase = phaseDead
	calls := w.auths
	for _, c := range w.pending {
		calls = append(calls, c)
	}
	w.pending, w.auths = nil, nil
	w.mu.Unlock()
	_ = w.conn.Close()
	close(w.gone)
	return calls, was, true
}

// take removes and returns the call with this xid. It returns nil for an unknown xid, and
// for a call that was not written yet, because the server cannot have answered it.
func (w *wire) take(xid int32) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	if xid == jute.XidAuth {
		if len(w.auths) == 0 || !w.auths[0].sent {
			return nil
		}
		c := w.auths[0]
		w.auths = w.auths[1:]
		return c
	}
	c := w.pending[xid]
	if c == nil || !c.sent {
		return nil
	}
	delete(w.pending, xid)
	return c
}
