package election

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// The end of Run's context takes the candidate out of the line, unless it is kept
// for a successor. A callback is not needed.
func TestRun_EndLeavesTheLine(t *testing.T) {
	for _, kept := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *memzk.Server) {
			ctx, cancel := context.WithCancel(t.Context())
			s := dialMem(t, w, "a")
			done := make(chan error)
			go func() { done <- New(Config{Name: "e", Path: "/e", ID: "a", Keep: kept}).Run(ctx, s, nil) }()
			synctest.Wait()
			cancel()
			must(t, <-done)
			names, _ := w.Children("/e")
			if got := len(names) == 1; got != kept {
				t.Errorf("keep %v: candidates %v", kept, names)
			}
		})
	}
}

// A candidate that leads once ends with its term.
func TestRun_Once(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		terms := 0
		c := New(Config{Path: "/e", ID: "a", Once: true, Lead: func(context.Context, Term) { terms++ }})
		must(t, c.Run(t.Context(), dialMem(t, w, "a"), nil))
		names, _ := w.Children("/e")
		if terms != 1 || len(names) != 0 {
			t.Errorf("%d terms, candidates %v", terms, names)
		}
	})
}
