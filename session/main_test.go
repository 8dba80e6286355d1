package session

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

func TestMain(m *testing.M) { zktest.RunMain(m) }

// within is how long a test waits for what must happen.
const within = 2 * time.Minute

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}
