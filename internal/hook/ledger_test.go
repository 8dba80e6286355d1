package hook

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

func TestLedger_WritesAreFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"h1:2181"}, Timeout: simTimeout, Dial: w.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, path := range []string{"/e", "/e/leader"} {
			if _, _, err := s.Create(t.Context(), path, nil, session.Persistent); err != nil {
				t.Fatal(err)
			}
		}
		l := &zkLedger{s: s, guard: session.CheckOp("/e/leader", -1), path: "/e-ledger/h"}
		if r, err := l.load(t.Context()); err != nil || r.Slot != nil {
			t.Fatalf("got %+v, %v", r, err)
		}
		first := record{Elected: &entry{State: stateStarted, Term: 1}}
		if err := l.store(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		first.Elected.State = stateDone
		if err := l.store(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		other := &zkLedger{s: s, guard: l.guard, path: l.path}
		if r, err := other.load(t.Context()); err != nil || r.Elected.State != stateDone {
			t.Fatalf("got %+v, %v", r, err)
		}
		if err := other.store(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := l.store(t.Context(), first); !errors.Is(err, errConflict) {
			t.Errorf("got %v, want %v", err, errConflict)
		}
		if err := s.Delete(t.Context(), "/e/leader", -1); err != nil {
			t.Fatal(err)
		}
		if err := other.store(t.Context(), first); !errors.Is(err, errNotLeader) {
			t.Errorf("got %v, want %v", err, errNotLeader)
		}
		if _, err := s.Set(t.Context(), "/e-ledger/h", []byte("garbage"), -1); err != nil {
			t.Fatal(err)
		}
		if _, err := other.load(t.Context()); err == nil {
			t.Error("garbage was taken for an empty ledger")
		}
	})
}
