package proc

import (
	"fmt"
	"io"
	"sync"
)

// tail keeps the last bytes of what is written to it. It is safe for
// concurrent use.
type tail struct {
	tee io.Writer // set before the first write

	mu    sync.Mutex // mu guards everything below.
	limit int
	buf   []byte
	lost  int64
}

func newTail(limit int) *tail {
	if limit <= 0 {
		limit = DefaultOutputLimit
	}
	return &tail{limit: limit}
}

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	if t.tee != nil {
		_, _ = t.tee.Write(p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	// Twice the limit is kept before cutting, so that a flood of small
	// writes does not move the whole buffer each time.
	if over := len(t.buf) - t.limit; over > 0 && len(t.buf) > 2*t.limit {
		t.cut(over)
	}
	return len(p), nil
}

func (t *tail) cut(over int) {
	t.lost += int64(over)
	t.buf = append(t.buf[:0], t.buf[over:]...)
}

// text returns what is kept, behind a note about what is not, and the number
// of bytes that are not.
func (t *tail) text() (string, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over := len(t.buf) - t.limit; over > 0 {
		t.cut(over)
	}
	if t.lost == 0 {
		return string(t.buf), 0
	}
	return fmt.Sprintf("[%d bytes cut]\n%s", t.lost, t.buf), t.lost
}
