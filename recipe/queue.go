package recipe

import (
	"context"
	"log/slog"

	"github.com/zkagent/zkagent/session"
)

// The queue, first in, first out.
//
//	<path>/qn-<sequence>         persistent sequential, the body as it is
//	<path>-taken/qn-<sequence>   ephemeral, the claim of a reserved item
//	<path>-ops/_c_<uuid>         ephemeral, our marker (rule of lost replies)
//	<path>-dead/qn-<sequence>    persistent sequential, items reserved too often
//
// This is the layout of ZooKeeper's own queue recipe and of Apache Curator's
// SimpleDistributedQueue, whose clients can put and take on the same path. They
// do not know claims: an item that is reserved here can be taken there.
//
// Steps (ZooKeeper Recipes, "Queues"): put creates; take lists, reads the first
// item and deletes it in a multi that fails when the item is claimed; reserve
// creates an ephemeral claim in a multi with a check of the item, and Ack
// deletes both.
//
// Guarantees: a Put that returns nil has put one item, not two; what Take
// returns, it alone has returned; items that nobody reserves are taken in the
// order in which they were put. Reserved items are delivered at least once. Not
// guaranteed: that an item is not lost when its taker dies between Take and its
// work (that is what Reserve is for); that max_len is never passed by a few.

// QueueConfig describes a queue.
type QueueConfig struct {
	Path string // its children are the items; it is made by the first Put
	// MaxLen is about how many items the queue may hold: a Put that finds
	// that many returns ErrFull. 0: no bound, and one request less.
	MaxLen int
	// MaxAttempts is how often an item is reserved: a Reserve that finds it
	// once more moves it to the queue <Path>-dead instead. 0: without end.
	MaxAttempts int
	Logger      *slog.Logger // nil: discard
}

// Queue is a first-in-first-out queue. It may be used by many goroutines at once.
type Queue struct{ consumer }

const fifoPrefix = "qn-"

// NewQueue returns a queue of the session. It does no I/O.
func NewQueue(s *session.Session, cfg QueueConfig) *Queue {
	return &Queue{consumer{items{
		s: s, dir: cfg.Path, claims: cfg.Path + "-taken", mode: withClaims, maxLen: cfg.MaxLen, logger: cfg.Logger,
		maxAttempts: cfg.MaxAttempts, path: cfg.Path,
		ops: newOperations(s, cfg.Path),
		parse: func(name string) (item, bool) {
			seq, ok := ParseSequence(name, fifoPrefix)
			return item{name: name, seq: seq}, ok && name[:len(fifoPrefix)] == fifoPrefix
		},
	}}}
}

// Put appends an item. It returns ErrTooLarge for a body over the limit, before
// it is sent, and ErrFull when a bounded queue is full.
func (q *Queue) Put(ctx context.Context, body []byte) error {
	return q.items.put(ctx, fifoPrefix, body)
}
