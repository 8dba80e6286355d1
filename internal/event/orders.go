package event

import (
	"cmp"
	"slices"

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
	*files.Store[[]Event]
	failed func(error)
}

// KeepOrders reads the orders that former processes received from a file, and keeps new
// ones there. It is called before the first event. failed is called with the error of a
// read or write.
func (e *Ring) KeepOrders(path string, failed func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	store, err := files.OpenStore[[]Event](path, nil)
	if err != nil {
		failed(err)
	}
	e.orders = &keptOrders{store, failed}
	_ = store.Change(func(list *[]Event) files.Write {
		*list = newest(slices.DeleteFunc(*list, func(o Event) bool { return o.Kind != orderKind }))
		for _, o := range *list {
			e.seq = max(e.seq, o.Seq) // The clock was ahead.
		}
		return files.WriteNothing
	})
}

func newest(list []Event) []Event { return slices.Clone(list[max(len(list)-ordersKept, 0):]) }

// add notes an order. Ring.mu is not held, so that a slow disk stops no event.
func (k *keptOrders) add(o Event) {
	if len(o.Text) > maxKeptText {
		o.Text = o.Text[:maxKeptText]
	}
	err := k.Change(func(list *[]Event) files.Write {
		*list = append(*list, o)
		slices.SortFunc(*list, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
		*list = newest(*list)
		return files.WriteSave
	})
	if err != nil {
		k.failed(err)
	}
}
