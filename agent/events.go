package agent

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
	Warn    bool      `json:"warn,omitempty"`
}

// eventsKept is the size of the ring.
const eventsKept = 500

// events is the ring of recent events. It is safe for concurrent use.
type events struct {
	mu      sync.Mutex // mu guards everything below.
	seq     int64
	ring    []Event
	changed chan struct{} // closed at the next event
}

// newEvents returns an empty ring. Its numbers begin with the time in
// microseconds, so that a reader of a former process misses nothing.
func newEvents() *events {
	return &events{seq: time.Now().UnixMicro(), changed: make(chan struct{})}
}

// add appends an event and wakes the followers.
func (e *events) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	ev.Seq, ev.Time = e.seq, time.Now()
	e.ring = append(e.ring, ev)
	if len(e.ring) >= 2*eventsKept {
		e.ring = append(e.ring[:0], e.ring[len(e.ring)-eventsKept:]...)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// newest returns the number of the newest event, and a channel that is closed
// at the next one.
func (e *events) newest() (int64, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seq, e.changed
}

// since returns the kept events after seq, and a channel that is closed at
// the next one. A number that was not given out is of a former process whose
// clock was ahead: all are new to that reader.
func (e *events) since(seq int64) ([]Event, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq > e.seq {
		seq = 0
	}
	kept := e.ring
	if len(kept) > eventsKept {
		kept = kept[len(kept)-eventsKept:]
	}
	for i, ev := range kept {
		if ev.Seq > seq {
			return append([]Event(nil), kept[i:]...), e.changed
		}
	}
	return nil, e.changed
}
