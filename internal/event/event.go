// Package event keeps the recent events of the agent: what it did, in order, under
// numbers that grow from one process to the next.
package event

import (
	"sync"
	"time"
)

// Event is one line of the agent's recent history.
type Event struct {
	Seq     int64     `json:"seq"` // grows, also from one process to the next
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`              // such as "applied" or "condition-opened"
	Subject string    `json:"subject,omitempty"` // what it is about
	Text    string    `json:"text,omitempty"`
	By      string    `json:"by,omitempty"` // who gave the order
	Warn    bool      `json:"warn,omitempty"`
}

// ringSize is the size of the ring.
const ringSize = 500

// Ring keeps the newest events. It is safe for concurrent use.
type Ring struct {
	mu      sync.Mutex // mu guards everything below.
	seq     int64
	ring    []Event
	changed chan struct{} // closed at the next event
	orders  *keptOrders   // nil: orders end with the process
}

// NewRing returns an empty ring. Its numbers begin with the time in
// microseconds, so that a reader of a former process misses nothing.
func NewRing() *Ring {
	return &Ring{seq: time.Now().UnixMicro(), changed: make(chan struct{})}
}

// Add appends an event and wakes the followers.
func (e *Ring) Add(ev Event) {
	if ev = e.add(ev); e.orders != nil && ev.Kind == orderKind {
		e.orders.add(ev)
	}
}

// add is Add to the ring; it returns the event with its number and time.
func (e *Ring) add(ev Event) Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	ev.Seq, ev.Time = e.seq, time.Now()
	e.ring = append(e.ring, ev)
	if len(e.ring) >= 2*ringSize {
		e.ring = append(e.ring[:0], e.ring[len(e.ring)-ringSize:]...)
	}
	close(e.changed)
	e.changed = make(chan struct{})
	return ev
}

// Newest returns the number of the newest event, and a channel that is closed
// at the next one.
func (e *Ring) Newest() (int64, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seq, e.changed
}

// Since returns the kept events after seq, and a channel that is closed at
// the next one. A number that was not given out is of a former process whose
// clock was ahead: all are new to that reader. Kept orders that the ring no longer has
// come first.
func (e *Ring) Since(seq int64) ([]Event, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq > e.seq {
		seq = 0
	}
	list := e.ring
	if len(list) > ringSize {
		list = list[len(list)-ringSize:]
	}
	var since []Event
	if e.orders != nil {
		e.orders.Read(func(orders []Event) {
			for _, o := range orders {
				if o.Seq > seq && (len(list) == 0 || o.Seq < list[0].Seq) {
					since = append(since, o)
				}
			}
		})
	}
	for i, ev := range list {
		if ev.Seq > seq {
			return append(since, list[i:]...), e.changed
		}
	}
	return since, e.changed
}
