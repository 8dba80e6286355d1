package mirror

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/session"
)

// DefaultConcurrency is how many requests for one znode each are in flight at most.
// A server is saturated by them; what each brings may be large.
const DefaultConcurrency = 16

// Options say what of the subtree is copied.
type Options struct {
	// Depth is how many levels below the root are copied; 0 means all. Znodes
	// at the last level get no children watch.
	Depth int
	// Skip leaves out a znode, by its path relative to the root, and all below.
	Skip func(rel string) bool
	// Concurrency is the number of requests in flight; 0 means
	// [DefaultConcurrency].
	Concurrency int
	Logger      *slog.Logger // nil: discard
	// Quiet says that what is skipped changes so seldom that its events may be
	// received, too; nil: never. See cover.
	Quiet func(rel string) bool
	// MaxBytes bounds the data that is kept; 0: no bound. A subtree with more has its
	// znodes watched and their sizes known, and no data: see Snapshot.TooLarge.
	MaxBytes int64

	coverFrom int // set by tests; 0 means coverFrom
}

// Mirror is a live copy of a subtree. Its methods must be called from one
// goroutine. Close it when it is no longer needed.
type Mirror struct {
	s    *session.Session
	root string
	opt  Options
	todo *marks

	top   *znode // the root
	pzxid int64  // of the root, as of its newest list
	n     int    // znodes that have been read
	bytes int64  // of their data
	errs  map[mark]*trouble
	last  int64

	hollow bool // the data is more than MaxBytes: it is not kept

	cover *session.RecursiveWatch // of the root; nil: none
	loud  bool                    // what is skipped must not be watched

	timer   *time.Timer // wakes up for what is due next, see retry.go
	wakeAt  time.Time
	recheck recheck
	changed []*znode // of the present Refresh
}

// New returns a mirror that has read nothing yet; everything is to be read.
func New(s *session.Session, root string, opt Options) *Mirror {
	if opt.Concurrency <= 0 {
		opt.Concurrency = DefaultConcurrency
	}
	if opt.coverFrom <= 0 {
		opt.coverFrom = coverFrom
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mirror{
		s: s, root: root, opt: opt, todo: newMarks(),
		top: &znode{path: root, mzxid: unread}, errs: map[mark]*trouble{},
	}
	m.recheck.plan()
	m.todo.mark(mark{})
	return m
}

// Close forgets all watches and ends what the mirror started.
func (m *Mirror) Close() {
	if m.timer != nil {
		m.timer.Stop()
	}
	m.top.disarm()
	m.cover.Release()
	m.cover = nil
}

// Dirty receives when there is something to read.
func (m *Mirror) Dirty() <-chan struct{} { return m.todo.queue.C() }

// Refresh reads what was marked until now, and what it finds new, and returns
// the copy with the relative paths that changed, in no order. Every event that the
// session received before the call counts as marked. The copy is good until the
// next call.
//
// After an error nothing is lost: what was not read stays marked.
func (m *Mirror) Refresh(ctx context.Context) (*Snapshot, []string, error) {
	err := m.look(ctx)
	marks := m.todo.take(m.root)
	m.changed = nil
	if err == nil {
		m.due(marks)
		err = m.read(ctx, marks)
	}
	if err == nil {
		err = m.fill(ctx)
	}
	if err != nil {
		for k := range marks {
			m.todo.mark(k)
		}
		m.todo.mark(mark{}) // what was found and not read is found again
		m.forgetAll()
		return nil, nil, err
	}
	m.setTimer()
	changed := make([]string, len(m.changed))
	for i, z := range m.changed {
		changed[i], z.noted = m.rel(z), false
	}
	m.changed = nil
	return &Snapshot{Root: m.root, Last: m.last, Bytes: m.bytes, TooLarge: m.hollow, top: m.top, n: m.n, errs: m.errors()}, changed, nil
}

// forgetAll makes the next Refresh read everything again: after an error in the
// middle it is not known what was armed. It happens when the context or the
// session ends, and then hardly anybody calls again.
func (m *Mirror) forgetAll() {
	m.top.disarm()
	m.top, m.n, m.bytes = &znode{path: m.root, mzxid: unread}, 0, 0
	clear(m.errs)
}

// Ended returns what a Run returns for err: nil when its context ended, the
// cause when the session ended, else err.
func Ended(ctx context.Context, s *session.Session, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), session.ErrExpired) {
		return nil
	}
	if s.Context().Err() != nil {
		return context.Cause(s.Context())
	}
	return err
}
