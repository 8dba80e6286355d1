package peers

import (
	"context"
	"testing"

	"github.com/zkagent/zkagent/session"
)

// AwaitChildren waits until a znode has n children; one that is missing has none.
func AwaitChildren(ctx context.Context, tb testing.TB, s *session.Session, path string, n int) {
	tb.Helper()
	for {
		list, watch, err := s.ListW(ctx, path)
		if err != nil {
			tb.Fatal(err)
		}
		if len(list.Names) != n {
			err = watch.Wait(ctx)
		}
		watch.Stop()
		switch {
		case err != nil:
			tb.Fatalf("%s has %d children, want %d: %v", path, len(list.Names), n, err)
		case len(list.Names) == n:
			return
		}
	}
}
