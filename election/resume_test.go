package election

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// manager runs a session manager with a state directory until stop, which
// hands the session over.
func manager(t *testing.T, w *memzk.Server, dir string) (*session.Session, func()) {
	t.Helper()
	m, err := session.New(session.Config{Servers: []string{"a:2181"}, Timeout: memTimeout, Dial: w.Dial, StateDir: dir})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	s, err := m.Session(t.Context())
	must(t, err)
	return s, func() {
		m.HandOver()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("manager: %v", err)
		}
	}
}

// A process that hands its session over goes on leading in the next process,
// under the same term; others see nothing.
func TestHandOver_KeepsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, w *memzk.Server) {
		dir := t.TempDir()
		s, handOver := manager(t, w, dir)
		cfg := Config{Name: "e", Path: "/e", ID: "a", Keep: true}
		a := run(t, s, cfg)
		first := <-a.terms
		b := run(t, dialMem(t, w, "b"), Config{Name: "e", Path: "/e", ID: "b"})
		must(t, a.stop())
		<-a.ended
		handOver()

		time.Sleep(memTimeout / 4)
		s, handOver = manager(t, w, dir)
		if !s.Resumed() {
			t.Fatal("the session was not resumed")
		}
		again := run(t, s, cfg)
		if second := <-again.terms; second.ID != first.ID || second.Path != first.Path {
			t.Errorf("term after the hand-over: got %+v, want %+v", second, first)
		}
		if len(b.terms) > 0 {
			t.Error("another candidate led in between")
		}
		must(t, again.Resign(t.Context()))
		<-b.terms
		must(t, again.stop())
		must(t, b.stop())
		handOver()
	})
}
