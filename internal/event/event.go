// Package event keeps the recent events of the agent: what it did, in order, under
// numbers that grow from one process to the next.
package event

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
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

const ringSize = 500

// Ring keeps the latest events. It is safe for concurrent use.
type Ring struct {
	mu      sync.Mutex // mu guards everything below.
	seq     int64
	ring    []Event
	changed chan struct{} // closed at the next event
	orders  *keptOrders   // nil: orders end with the process
}

// NewRing returns an empty ring. Its numbers begin with the time in
// microseconds, so that a reader of a previous process misses nothing.
func NewRing() *Ring {
	return &Ring{seq: time.Now().UnixMicro(), changed: make(chan struct{})}
}

// Add appends an event and wakes the followers.
func (e *Ring) Add(ev Event) {
	if ev = e.add(ev); e.orders == nil || ev.Kind != orderKind {
		return
	}
	if len(ev.Text) > maxKeptText {
		ev.Text = ev.Text[:maxKeptText]
	}
	err := e.orders.Change(func(list *[]Event) files.Write { // mu is not held, so that a slow disk stops no event
		*list = append(*list, ev)
		slices.SortFunc(*list, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
		*list = latest(*list)
		return files.WriteSave
	})
	if err != nil {
		e.orders.failed(err)
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
// the next one. A number that was not given out is of a previous process whose
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

// Orders outlive the ring and the process, because people ask later who gave them.
//
// Guaranteed: the latest ordersKept orders are in one file of mode 0600, which is
// replaced as a whole after each order. An order is in it before its sender has an
// answer. A file that cannot be read or written costs the past, never an order.

const (
	orderKind   = "order"
	ordersKept  = 200
	maxKeptText = 1 << 10 // bytes of one order's text in the file
)

// keptOrders are the latest orders, of this process and of previous ones.
type keptOrders struct {
	*files.Store[[]Event]
	failed func(error)
}

// KeepOrders reads the orders that previous processes received from the state directory,
// and keeps new ones there. It is called before the first event. failed is called with
// the error of a read or write.
func (e *Ring) KeepOrders(stateDir string, failed func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	store, err := files.OpenStore[[]Event](stateDir, "orders.json", nil)
	if err != nil {
		failed(err)
	}
	e.orders = &keptOrders{store, failed}
	_ = store.Change(func(list *[]Event) files.Write {
		*list = latest(slices.DeleteFunc(*list, func(o Event) bool { return o.Kind != orderKind }))
		for _, o := range *list {
			e.seq = max(e.seq, o.Seq) // The clock was ahead.
		}
		return files.WriteNothing
	})
}

func latest(list []Event) []Event { return slices.Clone(list[max(len(list)-ordersKept, 0):]) }
