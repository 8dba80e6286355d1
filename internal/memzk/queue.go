package memzk

import "sync"

// queue passes values from any goroutine to one that pops. It has no limit: it
// stands for a network and its buffers, which must not block the server.
type queue[T any] struct {
	mu    sync.Mutex // guards items
	items []T
	wake  chan struct{} // has one value when items may have become non-empty
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop waits for a value; false means that stop was closed.
func (q *queue[T]) pop(stop <-chan struct{}) (T, bool) {
	var zero T
	for {
		select {
		case <-stop:
			return zero, false
		default:
		}
		q.mu.Lock()
		if len(q.items) > 0 {
			v := q.items[0]
			q.items[0] = zero
			q.items = q.items[1:]
			q.mu.Unlock()
			return v, true
		}
		q.items = nil
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-stop:
			return zero, false
		}
	}
}
