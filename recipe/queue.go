package recipe

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

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
	// when it finds that many. 0: no bound, and later Puts need one request less.
	MaxLen int
	// MaxAttempts is how often an item is reserved. The next Reserve moves it to the
	// queue <Path>-dead instead. 0: no limit, so an item that always fails stays first.
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
	Path   string // see QueueConfig
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

// entryHead is the name of an item before the sequence: entry-<PPP>-.
var entryHead = regexp.MustCompile(`^entry-([0-9]{3,9})-$`)

func parseEntry(name string) (item, bool) {
	head, seq, _ := splitSequence(name)
	m := entryHead.FindStringSubmatch(head)
	if m == nil {
		return item{}, false
	}
	priority, err := strconv.Atoi(m[1])
	return item{name: name, priority: priority, seq: seq}, err == nil
}

// Put adds an item with a priority of 0 to 999.
func (q *PriorityQueue) Put(ctx context.Context, body []byte, priority int) error {
	if priority < 0 || priority > 999 {
		return fmt.Errorf("put into %s: priority %d: %w", q.dir, priority, ErrPriority)
	}
	return q.put(ctx, fmt.Sprintf("entry-%03d-", priority), body)
}

// The queue with ids and the delay queue.
//
// The time is when the item may be taken: milliseconds since 1970, in hexadecimal. A
// znode holds one message in Curator's frame:
//
//	00 01 00 01   01   length, 4 bytes   message   02
//
// Steps: as in [Queue]. The delay queue delivers in the order of time. It uses a list
// once. A waiting consumer also waits until the first item is due, by its own clock.
// Remove lists and deletes the items of an id.

// messageVersion begins the data of an item.
const (
	messageVersion = 0x00010001
	messageItem    = 0x01
	messageEnd     = 0x02
)

// packMessage returns the data of an item with one message.
func packMessage(body []byte) []byte {
	data := binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+10), messageVersion)
	data = append(data, messageItem)
	data = binary.BigEndian.AppendUint32(data, uint32(len(body))) // #nosec G115 -- at most maxBody
	return append(append(data, body...), messageEnd)
}

// unpackMessage returns the message in the data of an item.
func unpackMessage(data []byte) ([]byte, error) {
	if len(data) < 10 || binary.BigEndian.Uint32(data) != messageVersion || data[4] != messageItem {
		return nil, fmt.Errorf("%w: no message in Curator's frame", ErrFormat)
	}
	size, rest := uint64(binary.BigEndian.Uint32(data[5:])), data[9:]
	if size >= uint64(len(rest)) {
		return nil, fmt.Errorf("%w: a message of %d bytes in an item of %d", ErrFormat, size, len(data))
	}
	if rest[size] != messageEnd || size+1 != uint64(len(rest)) {
		return nil, fmt.Errorf("%w: more than one message", ErrFormat)
	}
	return rest[:size:size], nil
}

const messagePrefix = "queue-"

// newMessages returns a queue of messages. read parses the text between the bars of an
// item's name.
func newMessages(s *session.Session, cfg QueueConfig, read func(text string, it *item) bool) *items {
	q := newItems(s, cfg, func(name string) (item, bool) {
		head, seq, ok := splitSequence(name)
		text, is := strings.CutPrefix(head, messagePrefix+"|")
		text, is2 := strings.CutSuffix(text, "|")
		it := item{name: name, seq: seq}
		return it, ok && is && is2 && read(text, &it)
	})
	q.pack, q.unpack = packMessage, unpackMessage
	return q
}

// IDQueue is a first-in-first-out queue whose items can be removed by an id. Many
// goroutines may use it at once.
type IDQueue struct{ *items }

// NewIDQueue returns a queue with ids of the session. It does no I/O.
func NewIDQueue(s *session.Session, cfg QueueConfig) *IDQueue {
	return &IDQueue{newMessages(s, cfg, func(text string, it *item) bool {
		it.id = text
		return true
	})}
}

// Put appends an item under an id, which need not be unique. An id that is empty or
// contains a bar is an ErrFormat. As in Curator, a slash in it counts as an underscore.
// Other errors are as for [Queue.Put].
func (q *IDQueue) Put(ctx context.Context, id string, body []byte) error {
	if id == "" || strings.Contains(id, "|") {
		return fmt.Errorf("put into %s: id %q: %w", q.dir, id, ErrFormat)
	}
	return q.put(ctx, messagePrefix+"|"+cleanID(id)+"|", body)
}

// cleanID returns an id as it appears in a name.
func cleanID(id string) string { return strings.ReplaceAll(id, "/", "_") }

// Remove deletes the items of an id that are not reserved, and returns how many it
// deleted.
func (q *IDQueue) Remove(ctx context.Context, id string) (int, error) {
	return q.removeAll(ctx, func(it item) bool { return it.id == cleanID(id) })
}

// DelayQueue is a queue whose producer sets the earliest time to take an item.
// Many goroutines may use it at once.
type DelayQueue struct{ *items }

// NewDelayQueue returns a delay queue of the session. It does no I/O.
func NewDelayQueue(s *session.Session, cfg QueueConfig) *DelayQueue {
	q := &DelayQueue{newMessages(s, cfg, func(text string, it *item) bool {
		due, err := strconv.ParseUint(text, 16, 64)
		it.due = int64(due) // #nosec G115 -- Curator writes a signed number so
		return err == nil
	})}
	q.fresh = true
	return q
}

// Put adds an item that a consumer can take from due on, by the consumer's clock, in
// milliseconds. If due is in the past, a consumer can take it at once. Put returns the
// errors of [Queue.Put].
func (q *DelayQueue) Put(ctx context.Context, body []byte, due time.Time) error {
	return q.put(ctx, fmt.Sprintf("%s|%08X|", messagePrefix, max(due.UnixMilli(), 0)), body)
}
