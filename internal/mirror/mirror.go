package mirror

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/zkagent/zkagent/session"
)

// DefaultConcurrency is how many requests are in flight at most. A server is
// saturated by 16; more hides the latency of a distant one.
const DefaultConcurrency = 64

// Bounds of the back-off for znodes that cannot be read.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

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

	coverFrom int // set by tests; 0 means coverFrom
}

// Mirror is a live copy of a subtree. Its methods must be called from one
// goroutine. Close it when it is no longer needed.
type Mirror struct {
	s    *session.Session
	root string
	opt  Options
	todo *marks

	top  *znode // the root
	n    int    // znodes that have been read
	errs map[string]error
	last int64

	cover *session.RecursiveWatch // of the root; nil: none
	loud  bool                    // what is skipped must not be watched

	retry   *time.Timer
	backoff time.Duration
	changed map[string]struct{} // of the present Refresh
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
		top: &znode{path: root, mzxid: unread}, errs: map[string]error{},
	}
	m.todo.mark(mark{})
	return m
}

// Close forgets all watches and ends what the mirror started.
func (m *Mirror) Close() {
	if m.retry != nil {
		m.retry.Stop()
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
	marks := m.todo.take(m.root)
	m.changed = map[string]struct{}{}
	if err := m.read(ctx, marks); err != nil {
		for k := range marks {
			m.todo.mark(k)
		}
		m.todo.mark(mark{}) // what was found and not read is found again
		m.forgetAll()
		return nil, nil, err
	}
	m.planRetry()
	changed := make([]string, 0, len(m.changed))
	for rel := range m.changed {
		changed = append(changed, rel)
	}
	m.changed = nil
	return &Snapshot{Root: m.root, Last: m.last, top: m.top, n: m.n, errs: maps.Clone(m.errs)}, changed, nil
}

// forgetAll makes the next Refresh read everything again: after an error in the
// middle it is not known what was armed. It happens when the context or the
// session ends, and then hardly anybody calls again.
func (m *Mirror) forgetAll() {
	m.top.disarm()
	m.top, m.n = &znode{path: m.root, mzxid: unread}, 0
	clear(m.errs)
}

// planRetry marks what could not be read after a back-off.
func (m *Mirror) planRetry() {
	if len(m.errs) == 0 {
		m.backoff = 0
		return
	}
	m.backoff = min(max(2*m.backoff, firstRetry), lastRetry)
	rels := make([]string, 0, len(m.errs))
	for rel := range m.errs {
		rels = append(rels, rel)
	}
	if m.retry != nil {
		m.retry.Stop()
	}
	m.retry = time.AfterFunc(m.backoff, func() {
		for _, rel := range rels {
			m.todo.mark(mark{rel: rel})
			m.todo.mark(mark{rel: rel, kids: true})
		}
	})
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
