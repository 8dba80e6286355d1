package mirror

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A tree is not watched as a whole where its copy leaves out what may be loud, and
// no longer when that comes.
func TestFollow_LoudIsNotCovered(t *testing.T) {
	for name, tc := range map[string]struct {
		opt           Options
		before, after int // recursive watches
	}{
		"all":     {opt: Options{}, before: 1, after: 1},
		"depth":   {opt: Options{Depth: 1}},
		"skipped": {opt: Options{Skip: func(rel string) bool { return strings.HasPrefix(rel, "skip") }}, before: 1},
		"quiet": {opt: Options{
			Skip:  func(rel string) bool { return strings.HasPrefix(rel, "skip") },
			Quiet: func(rel string) bool { return rel == "skip" },
		}, before: 1, after: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				z := memzk.New(memzk.Options{})
				defer z.Close()
				for i := range 20 {
					must(t, z.Create(fmt.Sprintf("/r/k%02d", i), nil))
				}
				s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Dial: z.Dial})
				must(t, err)
				defer func() { _ = s.Close() }()
				tc.opt.coverFrom = 10
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				wg.Go(func() { _ = copyTree(ctx, s, "/r", tc.opt, func(*Snapshot) {}) })
				settled := func(want int) {
					t.Helper()
					time.Sleep(time.Second)
					synctest.Wait()
					if got := z.Watches(); got.Recursive != want {
						t.Errorf("the server has %+v, want %d recursive", got, want)
					}
				}
				settled(tc.before)
				must(t, z.Create("/r/skip", nil))
				settled(tc.after)
				cancel()
				settled(0)
			})
		})
	}
}
