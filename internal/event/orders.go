package event

import (
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/files"
)

// Orders outlive the ring and the process, because people ask later who gave them.
//
// Guaranteed: the newest ordersKept orders are in one file of mode 0600, which is
// replaced as a whole after each order. An order is in it before its sender has an
// answer. A file that cannot be read or written costs the past, never an order.

const (
	orderKind   = "order"
	ordersKept  = 200
	maxKeptText = 1 << 10 // bytes of one order's text in the file
)

// keptOrders are the newest orders, of this process and of former ones.
type keptOrders struct {
	path   string
	failed func(error)

	saving sync.Mutex // saving is held during a write, so that writes are in order.
	list   []Event    // Ring.mu guards it.
}

// KeepOrders reads the orders that former processes received from a file, and keeps new
// ones there. It is called before the first event. failed is called with the error of a
// read or write.
func (e *Ring) KeepOrders(path string, failed func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.orders = &keptOrders{path: path, failed: failed}
	var list []Event
	if err := files.LoadJSON(path, &list); err != nil {
		failed(err)
		return
	}
	list = slices.DeleteFunc(list, func(o Event) bool { return o.Kind != orderKind })
	e.orders.list = newest(list)
	for _, o := range e.orders.list {
		e.seq = max(e.seq, o.Seq) // The clock was ahead.
	}
}

func newest(list []Event) []Event { return slices.Clone(list[max(len(list)-ordersKept, 0):]) }

// add notes an order. Ring.mu is held.
func (k *keptOrders) add(o Event) {
	if len(o.Text) > maxKeptText {
		o.Text = o.Text[:maxKeptText]
	}
	k.list = newest(append(k.list, o))
}

// save writes the orders. Ring.mu is not held, so that a slow disk stops no event.
func (k *keptOrders) save(list func() []Event) {
	k.saving.Lock()
	defer k.saving.Unlock()
	if err := files.SaveJSON(k.path, list()); err != nil {
		k.failed(err)
	}
}
