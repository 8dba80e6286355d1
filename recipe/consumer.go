package recipe

import "context"

// consumer is the consumer's side of every queue.
type consumer struct{ items items }

// Take waits for an item and takes it: at most once.
func (q *consumer) Take(ctx context.Context) ([]byte, error) { return q.items.take(ctx, true) }

// TryTake is Take, but returns ErrEmpty instead of waiting.
func (q *consumer) TryTake(ctx context.Context) ([]byte, error) { return q.items.take(ctx, false) }

// Reserve waits for an item and claims it: at least once.
func (q *consumer) Reserve(ctx context.Context) (*Reservation, error) {
	return q.items.reserve(ctx, true)
}

// TryReserve is Reserve, but returns ErrEmpty instead of waiting.
func (q *consumer) TryReserve(ctx context.Context) (*Reservation, error) {
	return q.items.reserve(ctx, false)
}

// TakeOver continues a reservation that a previous process of this session left
// with [Reservation.Keep]. The name is its [Reservation.Name]. The error matches
// ErrNotHeld when this session has no such claim.
func (q *consumer) TakeOver(ctx context.Context, name string) (*Reservation, error) {
	return q.items.takeOver(ctx, name)
}

// Len returns the number of items. It counts reserved items and items that are not
// due. It also works for a queue that is too long to list.
func (q *consumer) Len(ctx context.Context) (int, error) { return q.items.len(ctx) }

// Purge deletes all items that are not reserved, and returns their number.
func (q *consumer) Purge(ctx context.Context) (int, error) {
	return q.items.removeAll(ctx, func(item) bool { return true })
}

// Items returns at most limit items of the queue, in the order of delivery. A limit
// of 0 returns all.
func (q *consumer) Items(ctx context.Context, limit int) ([]Item, error) {
	return q.items.inspect(ctx, limit)
}

// Peek returns the body of the first item that is not reserved, and leaves the item
// in the queue. The error matches ErrEmpty when there is no such item.
func (q *consumer) Peek(ctx context.Context) ([]byte, error) { return q.items.peek(ctx) }
