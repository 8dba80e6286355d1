package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := For(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("waited %s: %v", time.Since(start), err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		if err := For(ctx, time.Hour); !errors.Is(err, why) || time.Since(start) != time.Hour+time.Second {
			t.Errorf("ended after %s: %v", time.Since(start), err)
		}
	})
}
