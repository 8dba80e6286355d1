package session

import "time"

// Metrics counts the events of sessions. Package prom has one for Prometheus. Sessions call
// it from any goroutine, also while they hold locks, so its methods must not block.
type Metrics interface {
	// State gets the state that the session is in now.
	State(now State)
	// Expired counts a session that expired, Reconnected a connection after the
	// first of a session, RenewalFailed a try to renew the identity.
	Expired()
	Reconnected()
	RenewalFailed()
	// Sent counts a request, and Done its end: a reply, or the end of its connection
	// before that. Took is the time since the request was handed to the connection.
	Sent()
	Done(op string, took time.Duration, lost bool)
	// Bytes counts bytes read from servers, or written to them.
	Bytes(written bool, n int)
	// Watches adds to the number of watches that are set and waited for.
	Watches(delta int)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) State(State)                      {}
func (noMetrics) Expired()                         {}
func (noMetrics) Reconnected()                     {}
func (noMetrics) RenewalFailed()                   {}
func (noMetrics) Sent()                            {}
func (noMetrics) Done(string, time.Duration, bool) {}
func (noMetrics) Bytes(bool, int)                  {}
func (noMetrics) Watches(int)                      {}
