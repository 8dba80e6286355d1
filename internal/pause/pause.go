// Package pause waits for a while.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns the cause when ctx ends first. To wait in a ZooKeeper
// session, which may end too, use its Sleep.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
