package recipe

import (
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
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

		a, b := NewValue(late, "/r/v"), NewValue(other, "/r/v")
		must(t, second(b.CompareAndSet(ctx, Versioned{}, []byte("old"))))
		again := func() {
			must(t, other.Delete(ctx, "/r/v", -1))
			must(t, second(b.CompareAndSet(ctx, Versioned{}, []byte("new"))))
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
