package session

import "time"

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

func (s *Session) writeLimit() time.Duration { return max(s.Timeout()/3, minHandshake) }

// pingWritten starts the time limit for the server's answer. Only replies stop it. A
// server that sends events but does not receive our requests makes a connection look
// alive while the session expires. w.mu is held.
func (w *wire) pingWritten(now, stamp time.Time) {
	if w.pingAt.IsZero() {
		w.pingAt = stamp
	}
	_ = w.conn.SetReadDeadline(now.Add(pingLimit(w.s.Timeout())))
}

// pong handles the answer to a ping.
func (w *wire) pong() {
	w.mu.Lock()
	at := w.pingAt
	w.pingAt = time.Time{}
	if w.phase == phaseOpen {
		_ = w.conn.SetReadDeadline(time.Now().Add(w.idleLimit()))
	}
	w.mu.Unlock()
	if !at.IsZero() {
		w.useful.Store(true)
		w.heard(at, 0)
	}
}

func (w *wire) idleLimit() time.Duration {
	t := w.s.Timeout()
	return t/3 + pingLimit(t)
}

// patience prolongs the wait for a ping's answer, because replies are arriving and the
// answer comes after them.
func (w *wire) patience() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pingAt.IsZero() && w.phase == phaseOpen {
		_ = w.conn.SetReadDeadline(time.Now().Add(pingLimit(w.s.Timeout())))
	}
}
