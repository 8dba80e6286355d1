// Package mirror keeps a live copy of a subtree of ZooKeeper in one session.
//
// # Guarantees
//
// Each znode is read once and then only when its watch fired: work and requests
// per change do not depend on the size of the tree. An event is never taken for
// data; it says "read again". There is at most one live watch per path and kind.
// A znode that changes many times while it is waiting to be read is read once.
// Snapshots are immutable and share what did not change.
//
// A root that does not exist yet, vanishes or is recreated is normal. A znode
// that cannot be read has its error in the snapshot, is tried again with a back-off,
// and does not disturb the rest.
//
// # Not here
//
// Servers from 3.8.4 and 3.9.2 on keep events of znodes that a session may not read
// from a recursive watch. So in a large tree the first child of a znode without
// children, if it may not be read, is known only when it may be read and changes,
// when the znode gets another child, or at the next session.
//
// A snapshot is not a moment of the tree: its znodes were read one after another.
// The caller decides which trees are complete (the ready rule).
package mirror

import (
	"cmp"
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
	// MaxZnodes bounds the znodes that are copied, and MaxBytes then bounds their paths,
	// too; 0: no bound. Refresh of a subtree with more returns ErrTooMany. Close the
	// mirror then: it holds a part of the subtree.
	MaxZnodes int
	// Parts applies MaxBytes to each child of the root with all below it, instead of to
	// the whole tree.
	Parts bool
	// MaxChildren bounds the children that are copied of a znode, by its relative path;
	// 0, or a nil function: no bound. Those with the lowest names are copied, and
	// Node.Over has the others.
	MaxChildren func(rel string) int
	// Settle is how long a change of data waits for a change of a list before it is
	// read. Several changes are read together then.
	Settle time.Duration
	// Recheck is how many znodes besides the root are looked at every 30 to 60 seconds
	// without an event; 0: 8. With Parts, as many children of the root are looked at.
	Recheck int

	coverFrom int // set by tests; 0 means coverFrom
}

// ErrTooMany says that a subtree has more znodes than Options.MaxZnodes allows, or
// longer names than MaxBytes allows.
var ErrTooMany = errors.New("too many znodes")

// Mirror is a live copy of a subtree. Its methods must be called from one
// goroutine. Close it when it is no longer needed.
type Mirror struct {
	s    *session.Session
	root string
	opt  Options
	todo *marks

	top   *znode // the root
	pzxid int64  // of the root, as of its latest list
	n     int    // znodes that have been read
	known int    // znodes that have been listed
	names int64  // bytes of their paths
	parts map[string]*part
	errs  map[mark]*trouble
	last  int64
	again []*znode // that were deleted, and are listed again

	cover *session.RecursiveWatch // of the root; nil: none
	loud  bool                    // what is skipped must not be watched

	timer   *time.Timer // wakes up for what is due next, see retry.go
	wakeAt  time.Time
	recheck recheck
	changed []*znode // of the present Refresh
}

// New returns a mirror that has read nothing yet; everything is to be read.
func New(s *session.Session, root string, opt Options) *Mirror {
	opt.Concurrency = cmp.Or(max(opt.Concurrency, 0), DefaultConcurrency)
	opt.coverFrom = cmp.Or(max(opt.coverFrom, 0), coverFrom)
	opt.Logger = cmp.Or(opt.Logger, slog.New(slog.DiscardHandler))
	opt.Recheck = cmp.Or(max(opt.Recheck, 0), recheckFew)
	m := &Mirror{
		s: s, root: root, opt: opt, todo: &marks{queue: session.NewWatchQueue(), own: map[mark]struct{}{}}, parts: map[string]*part{},
		top: &znode{path: root, stat: Stat{Mzxid: unread}}, errs: map[mark]*trouble{},
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

// Mark makes the next Refresh read a znode, by its relative path, and the list of its
// parent, as if their watches had fired.
func (m *Mirror) Mark(rel string) {
	parent, _ := session.SplitPath("/" + rel)
	m.todo.mark(mark{rel: rel})
	m.todo.mark(mark{rel: parent[1:], kids: true})
}

// Refresh reads what was marked until now, and what it finds new, and returns
// the copy with the relative paths that changed, in no order. Every event that the
// session received before the call counts as marked. The copy is good until the
// next call.
//
// After an error nothing is lost: what was not read stays marked.
func (m *Mirror) Refresh(ctx context.Context) (*Snapshot, []string, error) {
	err := m.settle(ctx)
	if err == nil {
		err = m.look(ctx)
	}
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
		// It is not known what was armed, so the next Refresh reads everything again. The
		// context or the session has ended, and then hardly anybody calls again.
		m.top.disarm()
		m.top, m.n, m.again = &znode{path: m.root, stat: Stat{Mzxid: unread}}, 0, nil
		clear(m.errs)
		m.parts = map[string]*part{} // a Snapshot may still have the old ones
		return nil, nil, err
	}
	m.setTimer()
	changed := make([]string, len(m.changed))
	for i, z := range m.changed {
		changed[i], z.noted = m.rel(z), false
	}
	m.changed = nil
	snap := &Snapshot{Root: m.root, Last: m.last, top: m.top, n: m.n, errs: m.errors(), parts: m.parts}
	snap.Bytes, snap.TooLarge = snap.Size("")
	return snap, changed, nil
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

// Follow copies a subtree in one session until ctx or the session ends. It calls step
// with each copy and the relative paths that changed, also when wake receives (nil:
// never), or at the time that step returned last (zero: never). An error of step ends
// it. It returns what [Ended] returns.
func Follow(
	ctx context.Context, s *session.Session, root string, opt Options,
	wake <-chan struct{}, step func(snap *Snapshot, changed []string) (time.Time, error),
) error {
	m := New(s, root, opt)
	defer m.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		snap, changed, err := m.Refresh(ctx)
		if err != nil {
			return Ended(ctx, s, err)
		}
		switch next, err := step(snap, changed); {
		case err != nil:
			return err
		case next.IsZero():
			timer.Stop()
		default:
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return Ended(ctx, s, context.Cause(ctx))
		case <-s.Done():
			return context.Cause(s.Context())
		case <-m.Dirty():
		case <-wake:
		case <-timer.C:
		}
	}
}
