package recipe

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

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

// Put adds an item that can be taken from due on, by the clock of the consumer, in
// milliseconds. An item with a time in the past can be taken at once. Errors are those
// of [Queue.Put].
func (q *DelayQueue) Put(ctx context.Context, body []byte, due time.Time) error {
	return q.put(ctx, fmt.Sprintf("%s|%08X|", messagePrefix, max(due.UnixMilli(), 0)), body)
}
