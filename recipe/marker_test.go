package recipe

import (
	"errors"
	"fmt"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

func TestOperations_OutcomeIsKnown(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("before=", before), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				o := newOperations(w.dial("a"), "/q")
				must(t, w.Create("/n", nil))
				for i := range 3 {
					w.LoseReply(jute.OpMulti, 1, before)
					must(t, o.do(t.Context(), session.SetOp("/n", nil, int32(i))))
				}
				err := o.do(t.Context(), session.SetOp("/n", nil, 0))
				failed, ok := errors.AsType[*session.MultiError](err)
				if !ok || failed.Index != 0 || !errors.Is(err, session.ErrBadVersion) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// Another client writes the marker. The multi whose reply is lost next is applied once.
func TestOperations_MarkerOfAnother(t *testing.T) {
	for _, before := range []bool{true, false} {
		bubble(t, func(t *testing.T, w *world) {
			must(t, w.Create("/n", nil))
			o := newOperations(w.dial("a"), "/q")
			must(t, o.do(t.Context(), session.SetOp("/n", nil, -1)))
			names, _ := w.Children("/q-ops")
			must(t, w.Set("/q-ops/"+names[0], nil))
			must(t, o.do(t.Context(), session.SetOp("/n", nil, -1)))
			w.LoseReply(jute.OpMulti, 1, before)
			must(t, o.do(t.Context(), session.SetOp("/n", nil, -1)))
			if n, _ := w.Get("/n"); n.Stat.Version != 3 {
				t.Errorf("lost before it was applied %v: applied %d times, want 3", before, n.Stat.Version)
			}
		})
	}
}

// A multi whose outcome could not be found out leaves a marker whose version is not known,
// or that is gone. The next multi reads it first, or takes another one.
func TestOperations_AfterDoubt(t *testing.T) {
	for _, before := range []bool{true, false} {
		for _, gone := range []bool{true, false} {
			bubble(t, func(t *testing.T, w *world) {
				must(t, w.Create("/a", nil))
				o := newOperations(w.dial("a"), "/a")
				must(t, o.do(t.Context(), session.SetOp("/a", []byte("0"), -1)))
				w.LoseReply(jute.OpMulti, 1, before)
				if gone {
					w.Hold(func(h memzk.Held) <-chan struct{} {
						if names, _ := w.Children("/a-ops"); h.Op == jute.OpSync && len(names) > 0 {
							must(t, w.Delete("/a-ops/"+names[0]))
						}
						return nil
					})
				} else {
					w.RefuseWith(jute.OpSync, jute.ErrCodeSystemError)
				}
				if err := o.do(t.Context(), session.SetOp("/a", []byte("1"), -1)); !errors.Is(err, session.ErrUnknown) {
					t.Fatalf("got %v", err)
				}
				w.Hold(nil)
				w.Allow(jute.OpSync)
				if err := o.do(t.Context(), session.SetOp("/a", []byte("2"), -1)); err != nil {
					t.Errorf("lost before it was applied %v, marker gone %v: %v", before, gone, err)
				}
			})
		}
	}
}
