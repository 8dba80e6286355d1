package election

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A process that resumes a session keeps the candidate of its own id. One of
// another id, which a host had before it was renamed, goes.
func TestAdopt_OnlyTheOwnID(t *testing.T) {
	for _, former := range []string{"h1", "renamed"} {
		synctest.Test(t, func(t *testing.T) {
			w := memzk.New(memzk.Options{TickTime: time.Second})
			defer w.Close()
			dir := t.TempDir()
			lead := func(id string) (term int64) {
				m, err := session.New(session.Config{Servers: []string{"h1:2181"}, Timeout: 12 * time.Second, Dial: w.Dial, StateDir: dir})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{}, 2)
				go func() { _ = m.Run(ctx); done <- struct{}{} }()
				s, err := m.Session(ctx)
				if err != nil {
					t.Fatal(err)
				}
				began := make(chan int64, 1)
				c := New(Config{Name: "e", Path: "/e", ID: id, Keep: true, Lead: func(ctx context.Context, t Term) {
					began <- t.ID
					<-ctx.Done()
				}})
				unit, end := context.WithCancel(ctx)
				go func() { _ = c.Run(unit, s, nil); done <- struct{}{} }()
				term = <-began
				m.HandOver()
				end()
				<-done
				cancel()
				<-done
				return term
			}
			first, second := lead(former), lead("h1")
			if kept := first == second; kept != (former == "h1") {
				t.Errorf("a candidate of %s was kept for h1: %v", former, kept)
			}
		})
	}
}
