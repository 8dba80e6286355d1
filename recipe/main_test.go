package recipe

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// patience bounds waits for what must happen; it is never what is measured.
const patience = 2 * time.Minute

// testContext ends when the test has taken far too long.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dialReal opens a session with the real ZooKeeper that the tests share.
func dialReal(t testing.TB) *session.Session {
	t.Helper()
	return dialAt(t, zktest.Shared(t).Addr())
}

func dialAt(t testing.TB, addrs ...string) *session.Session {
	t.Helper()
	s, err := session.Dial(testContext(t), session.Config{Servers: addrs, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// requests returns how many requests of an operation the session has sent.
func total(s *session.Session) uint64 {
	var n uint64
	for op, count := range s.Requests() {
		if op != "ping" {
			n += count
		}
	}
	return n
}
