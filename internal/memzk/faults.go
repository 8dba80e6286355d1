package memzk

import "time"

// Faults decides what goes wrong in a server. A test passes its own in Options. The
// server calls Arrive and Leave without a lock, and the other methods with its lock
// held: they must not call the server.
type Faults interface {
	// Refuse reports whether a client that dials addr is refused.
	Refuse(addr string) bool
	// Arrive waits until a packet of a client that dialed addr may be handled. request
	// is nil unless it is a request within a session. Arrive returns false when stop is
	// closed first.
	Arrive(addr string, request []byte, stop <-chan struct{}) bool
	// Leave waits until a packet may be sent to a client that dialed addr. It returns
	// false when stop is closed first.
	Leave(addr string, stop <-chan struct{}) bool
	// Strike returns what happens to a request. The body of a handshake is all of it.
	Strike(op int32, body []byte) Fault
	// LoseEvent reports whether a watch event for a client that dialed addr is lost.
	LoseEvent(addr string) bool
	// Queue counts bytes of replies that begin to wait for their client, or no longer
	// wait when the number is negative. It reports whether the server dies of them.
	Queue(bytes int) bool
	// Now is the time that stamps transactions.
	Now() time.Time
}

// Fault is what happens to one request. The zero value means that nothing goes wrong.
type Fault struct {
	Drop       bool      // the connection ends before the request is applied
	Lose       bool      // the request is applied, and the connection ends without a reply
	Close      bool      // the connection ends behind the reply to this handshake
	NewSession bool      // this handshake takes up no session: the old one ends, and it gets a new one
	Code       int32     // the error that refuses the request; 0 for none
	At         time.Time // before which the reply must not be sent
}

// noFaults is for a server that works.
type noFaults struct{}

func (noFaults) Refuse(string) bool                          { return false }
func (noFaults) Arrive(string, []byte, <-chan struct{}) bool { return true }
func (noFaults) Leave(string, <-chan struct{}) bool          { return true }
func (noFaults) Strike(int32, []byte) Fault                  { return Fault{} }
func (noFaults) LoseEvent(string) bool                       { return false }
func (noFaults) Queue(int) bool                              { return false }
func (noFaults) Now() time.Time                              { return time.Now() }
