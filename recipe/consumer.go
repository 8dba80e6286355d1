package recipe

import "context"

// consumer has what queues have in common for those who take from them.
type consumer struct{ items items }

// Take waits for an item and takes it: at most once.
func (q *consumer) Take(ctx context.Context) ([]byte, error) { return q.items.take(ctx, true) }

// TryTake is Take that returns ErrEmpty instead of waiting.
func (q *consumer) TryTake(ctx context.Context) ([]byte, error) { return q.items.take(ctx, false) }

// Reserve waits for an item and claims it: at least once.
func (q *consumer) Reserve(ctx context.Context) (*Reservation, error) {
	return q.items.reserve(ctx, true)
}

// TryReserve is Reserve that returns ErrEmpty instead of waiting.
func (q *consumer) TryReserve(ctx context.Context) (*Reservation, error) {
	return q.items.reserve(ctx, false)
}

// TakeOver goes on with a reservation that a former process of this session left
// with [Reservation.Keep]; name is its [Reservation.Name]. The error matches
// ErrNotHeld when this session has no such claim.
func (q *consumer) TakeOver(ctx context.Context, name string) (*Reservation, error) {
	return q.items.takeOver(ctx, name)
}

// Len returns the number of items, with those that are reserved or not due. It works
// for a queue that is too long to be listed.
func (q *consumer) Len(ctx context.Context) (int, error) { return q.items.len(ctx) }

// Purge deletes all items that are there and not reserved, and returns how many.
func (q *consumer) Purge(ctx context.Context) (int, error) {
	return q.items.removeAll(ctx, func(item) bool { return true })
}

// Items returns what is in the queue, in the order in which it is taken, at most
// limit items; 0: all.
func (q *consumer) Items(ctx context.Context, limit int) ([]Item, error) {
	return q.items.inspect(ctx, limit)
}

// Peek returns the body of the first item that nobody has reserved, and leaves it
// there; the error matches ErrEmpty when there is none.
func (q *consumer) Peek(ctx context.Context) ([]byte, error) { return q.items.peek(ctx) }
