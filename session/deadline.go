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

// pong handles the answer to a ping.
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
