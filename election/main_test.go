package election

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func TestMain(m *testing.M) { zktest.RunMain(m) }

// patience bounds waits for what must happen; it is never what is measured.
const patience = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func dialReal(t testing.TB) *session.Session {
	t.Helper()
	s, err := session.Dial(testContext(t), session.Config{Servers: []string{zktest.Shared(t).Addr()}, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runner runs a candidate and shows its terms and updates.
type runner struct {
	*Candidate
	terms   chan Term
	ended   chan error // causes of the ends of terms
	updates chan view.Leader
	stop    func() error
}

// run runs a candidate until stop, which returns what Run returned.
func run(t testing.TB, s *session.Session, cfg Config) *runner {
	t.Helper()
	r := &runner{terms: make(chan Term, 100), ended: make(chan error, 100), updates: make(chan view.Leader, 1000)}
	cfg.Lead = func(ctx context.Context, term Term) {
		r.terms <- term
		<-ctx.Done()
		r.ended <- context.Cause(ctx)
	}
	r.Candidate = New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, s, func(u *view.Leader) { r.updates <- *u })
	}()
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// recv returns what comes from c.
func recv[T any](ctx context.Context, t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatalf("nothing came: %v", context.Cause(ctx))
		panic("unreachable")
	}
}
