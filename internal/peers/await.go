package peers

import (
	"context"
	"errors"
	"testing"

	"github.com/zkagent/zkagent/session"
)

// AwaitChildren waits until a znode has n children; one that is missing has none.
func AwaitChildren(ctx context.Context, tb testing.TB, s *session.Session, path string, n int) {
	tb.Helper()
	for {
		names, _, watch, err := s.ChildrenW(ctx, path)
		if errors.Is(err, session.ErrNoNode) {
			_, _, watch, err = s.ExistsW(ctx, path)
		}
		if err != nil {
			tb.Fatal(err)
		}
		if len(names) == n {
			watch.Stop()
			return
		}
		select {
		case <-watch.C():
		case <-s.Done():
			tb.Fatalf("%s has %d children, want %d: %v", path, len(names), n, context.Cause(s.Context()))
		case <-ctx.Done():
			tb.Fatalf("%s has %d children, want %d: %v", path, len(names), n, context.Cause(ctx))
		}
		watch.Stop()
	}
}
