package recipe

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// A znode is deleted, and a client makes it again with the same version, after a read and
// before the write that relies on it.

// The new znode has another value, so nothing that was computed from the old one is set.
func TestValue_MadeAnewBeforeTheSet(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
		count := func(s *session.Session) *Counter { return NewCounter(s, CounterConfig{Path: "/r/n"}) }
		must(t, second(count(other).Add(ctx, 5)))
		w.between("late", jute.OpMulti, "/r/n", func() {
			must(t, other.Delete(ctx, "/r/n", -1))
			must(t, second(count(other).Add(ctx, 1)))
		})
		if n, err := count(late).Add(ctx, 1); n != 2 || err != nil {
			t.Errorf("counter: got %d, %v, want 2", n, err)
		}

		a, b := NewValue[[]byte](late, "/r/v"), NewValue[[]byte](other, "/r/v")
		must(t, second(b.CompareAndSet(ctx, Versioned[[]byte]{}, []byte("old"))))
		again := func() {
			must(t, other.Delete(ctx, "/r/v", -1))
			must(t, second(b.CompareAndSet(ctx, Versioned[[]byte]{}, []byte("new"))))
		}
		for name, prepare := range map[string]func(){
			"before the call":      again,
			"before its multi":     func() { w.between("late", jute.OpMulti, "/r/v", again) },
			"by another program":   func() { must(t, other.Delete(ctx, "/r/v", -1)); must(t, w.Create("/r/v", []byte("new"))) },
			"deleted and not made": func() { must(t, other.Delete(ctx, "/r/v", -1)) },
		} {
			old, err := a.Get(ctx)
			must(t, err)
			if !old.Exists {
				must(t, second(b.CompareAndSet(ctx, old, []byte("old"))))
				old, err = a.Get(ctx)
				must(t, err)
			}
			prepare()
			done, err := a.CompareAndSet(ctx, old, []byte("mine"))
			if done || err != nil {
				t.Errorf("%s: set over another value: %v, %v", name, done, err)
			}
			if now, err := a.Get(ctx); err != nil || string(now.Data) == "mine" {
				t.Errorf("%s: the value is %q, %v", name, now.Data, err)
			}
		}
	})
}

// A refused contender of a semaphore in kazoo's layout takes its number of permits back.
// Before that the path became a semaphore, with a holder: its number stays.
func TestSemaphore_TakesBackNoNumberInUse(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
		semaphore := func(s *session.Session, k int) *Semaphore {
			return NewSemaphore(s, SemaphoreConfig{Path: "/h", K: k, Dialect: Kazoo})
		}
		lock := "/h/_c_x-lock-0000000000"
		held := make(chan error, 1)
		w.between("late", jute.OpGetChildren2, "/h", func() {
			must(t, second2(other.Create(ctx, lock, nil, session.Ephemeral)))
			w.between("late", jute.OpMulti, "/h", func() {
				must(t, other.Delete(ctx, lock, -1))
				go func() { held <- second(semaphore(other, 1).Acquire(ctx)) }()
				time.Sleep(time.Second) // it holds a permit, or waits until the number is taken back
			})
		})
		if err := second(semaphore(late, 1).Acquire(ctx)); !errors.Is(err, ErrKind) {
			t.Errorf("got %v, want ErrKind", err)
		}
		must(t, <-held)
		if err := second(semaphore(w.dial("third"), 2).TryAcquire(ctx)); !errors.Is(err, ErrPermits) {
			t.Errorf("a contender with another number beside a holder: %v", err)
		}
	})
}

// A contender is about to put its text in force. Before its write the path is deleted and
// made again by another contender, which holds a permit: its text stays.
func TestSemaphore_TextOfAPathMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, late, other := t.Context(), w.dial("late"), w.dial("other")
		semaphore := func(s *session.Session, text string) *Semaphore {
			return NewSemaphore(s, SemaphoreConfig{Path: "/h", Text: text, Permits: func(_ context.Context, text string) (int, error) { return strconv.Atoi(text) }})
		}
		must(t, w.Create("/h", []byte("2")))
		w.between("late", jute.OpMulti, "/h", func() {
			for _, path := range slices.Backward(slices.Sorted(maps.Keys(w.Tree()))) {
				if strings.HasPrefix(path, "/h") {
					must(t, w.Delete(path))
				}
			}
			must(t, second(semaphore(other, "1").Acquire(ctx)))
		})
		if h, err := semaphore(late, "5").Acquire(ctx); err == nil {
			t.Errorf("holds %s", h.Path())
		}
		if n, err := w.Get("/h"); err != nil || string(n.Data) != "1" {
			t.Errorf("the text is %q, %v", n.Data, err)
		}
	})
}

// A node is about to replace the znode of its former session, or to write its own. Before
// that the znode goes, and a node of another session takes the name: that one keeps it.
func TestNode_ZnodeOfAnotherUnderTheSameName(t *testing.T) {
	for op, body := range map[int32]string{jute.OpMulti: "/n", jute.OpSetData: "/n"} {
		bubble(t, func(t *testing.T, w *world) {
			ctx, former, late, other := t.Context(), w.dial("former"), w.dial("late"), w.dial("other")
			theirs := NewNode(NodeConfig{Path: "/n", Data: []byte("theirs")})
			came := w.between("late", op, body, func() {
				w.ExpireSession(former.ID())
				if op == jute.OpSetData {
					must(t, w.Delete("/n"))
				}
				go func() { _ = theirs.Run(ctx, other) }()
				<-theirs.Created()
			})
			mine := NewNode(NodeConfig{Path: "/n", Data: []byte("mine"), Internal: keeper.Config{Earlier: []int64{former.ID()}}})
			if op == jute.OpMulti {
				must(t, second2(former.Create(ctx, "/n", []byte("old"), session.Ephemeral)))
			}
			go func() { _ = mine.Run(ctx, late) }()
			if op == jute.OpSetData {
				<-mine.Created()
				mine.SetData([]byte("more"))
			}
			<-came
			time.Sleep(time.Minute)
			if n, err := w.Get("/n"); err != nil || n.Stat.EphemeralOwner != other.ID() || string(n.Data) != "theirs" {
				t.Errorf("operation %d: %q of %x, %v, want %x", op, n.Data, n.Stat.EphemeralOwner, err, other.ID())
			}
		})
	}
}
