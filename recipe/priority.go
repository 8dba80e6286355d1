package recipe

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// The priority queue.
//
// PPP is the priority, 000 to 999, lower first. <path>-ops/_c_<uuid> is our
// marker (rule of lost replies).
//
// Steps (ZooKeeper Recipes, "Priority Queues"): as in [Queue], in the order of
// priority and then sequence number. A list is used once: a new item may precede all
// known ones.

// DefaultPriority is kazoo's default priority.
const DefaultPriority = 100

// PriorityQueueConfig describes a priority queue.
type PriorityQueueConfig struct {
	Path   string // see above; it is created by the first Put
	MaxLen int    // see QueueConfig
	// Reserve selects the layout of kazoo's LockingQueue, which supports
	// reservations. All users of a path must agree.
	Reserve     bool
	MaxAttempts int          // see QueueConfig
	Logger      *slog.Logger // nil: discard
}

// PriorityQueue delivers lower priorities first. Many goroutines may use it at once.
type PriorityQueue struct{ *items }

// NewPriorityQueue returns a priority queue of the session. It does no I/O.
func NewPriorityQueue(s *session.Session, cfg PriorityQueueConfig) *PriorityQueue {
	queue := QueueConfig{Path: cfg.Path, MaxLen: cfg.MaxLen, MaxAttempts: cfg.MaxAttempts, Logger: cfg.Logger}
	q := &PriorityQueue{newItems(s, queue, parseEntry)}
	q.fresh, q.claims = true, ""
	if cfg.Reserve {
		q.dir, q.claims = child(cfg.Path, "entries"), child(cfg.Path, "taken")
	}
	return q
}

// parseEntry reads entry-<PPP>-<sequence>.
func parseEntry(name string) (item, bool) {
	head, seq, ok := splitSequence(name)
	digits, isEntry := strings.CutPrefix(head, "entry-")
	digits, isEntry2 := strings.CutSuffix(digits, "-")
	if !ok || !isEntry || !isEntry2 || len(digits) < 3 {
		return item{}, false
	}
	priority, err := strconv.Atoi(digits)
	if err != nil {
		return item{}, false
	}
	return item{name: name, priority: priority, seq: seq}, true
}

// Put adds an item with a priority of 0 to 999.
func (q *PriorityQueue) Put(ctx context.Context, body []byte, priority int) error {
	if priority < 0 || priority > 999 {
		return fmt.Errorf("put into %s: priority %d: %w", q.dir, priority, ErrPriority)
	}
	return q.put(ctx, fmt.Sprintf("entry-%03d-", priority), body)
}
