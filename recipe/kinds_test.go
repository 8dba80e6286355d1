package recipe

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A semaphore on a path of the other layout is refused, both ways, while a permit is held
// there. The error says whose the path is, and the refused contender leaves nothing that
// would keep the other client waiting.
func TestSemaphore_PathOfTheOtherLayout(t *testing.T) {
	for have, want := range map[string]string{Curator: Kazoo, Kazoo: Curator} {
		t.Run(want+" on "+have, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx := t.Context()
				for _, declared := range []bool{true, false} {
					h, err := NewSemaphore(w.dial("a"), SemaphoreConfig{Path: "/h", K: 2, Dialect: have}).Acquire(ctx)
					must(t, err)
					if !declared { // as kazoo leaves it
						must(t, second(w.dial("b").Set(ctx, "/h", nil, -1)))
					}
					before := names(t, w, "/h")
					err = second(NewSemaphore(w.dial("c"), SemaphoreConfig{Path: "/h", K: 2, Dialect: want}).TryAcquire(ctx))
					if !errors.Is(err, ErrKind) || !strings.Contains(strings.ToLower(err.Error()), "used as a semaphore in "+have+"'s layout") {
						t.Errorf("got %v", err)
					}
					if err := second(NewLock(w.dial("d"), LockConfig{Path: "/h"}).TryAcquire(ctx)); !errors.Is(err, ErrKind) {
						t.Errorf("a lock: got %v", err)
					}
					settle()
					for _, name := range names(t, w, "/h") {
						if !slices.Contains(before, name) {
							t.Errorf("%s stays", name)
						}
					}
					must(t, h.Err())
					must(t, h.Release(ctx))
				}
			})
		})
	}
}

func names(t *testing.T, w *world, path string) []string {
	t.Helper()
	list, err := w.Children(path)
	must(t, err)
	return list
}
