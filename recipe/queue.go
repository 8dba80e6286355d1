package recipe

import (
	"context"
	"log/slog"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// The queue, first in, first out.
//
// This is the layout of ZooKeeper's own queue recipe and of Apache Curator's
// SimpleDistributedQueue. Their clients can put and take on the same path. They
// ignore claims, so they can take an item that is reserved here.
//
// Steps (ZooKeeper Recipes, "Queues"): put creates the item. Take lists, reads the
// first item, and deletes it in a multi that fails when the item is claimed. Reserve
// creates an ephemeral claim in a multi with a check of the item. Ack deletes both.

// QueueConfig describes a queue.
type QueueConfig struct {
	Path string // its children are the items; the first Put creates it
	// MaxLen is about how many items the queue may hold. A Put returns ErrFull
	// when it finds that many. 0: no bound, and one request less.
	MaxLen int
	// MaxAttempts is how often an item is reserved. The next Reserve moves it to
	// the queue <Path>-dead instead. 0: no limit.
	MaxAttempts int
	Logger      *slog.Logger // nil: discard
}

// Queue is a first-in-first-out queue. Many goroutines may use it at once.
type Queue struct{ *items }

const fifoPrefix = "qn-"

// NewQueue returns a queue of the session. It does no I/O.
func NewQueue(s *session.Session, cfg QueueConfig) *Queue {
	return &Queue{newItems(s, cfg, func(name string) (item, bool) {
		seq, ok := ParseSequence(name, fifoPrefix)
		return item{name: name, seq: seq}, ok && strings.HasPrefix(name, fifoPrefix)
	})}
}

// Put appends an item. It returns ErrTooLarge for a body over the limit, which it does
// not send, and ErrFull when a bounded queue is full.
func (q *Queue) Put(ctx context.Context, body []byte) error {
	return q.put(ctx, fifoPrefix, body)
}
