package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

func TestBackoff(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		policy Backoff
		want   []time.Duration
	}{
		"once":     {Backoff{First: s, Tries: 1}, nil},
		"n times":  {Backoff{First: s, Tries: 3}, []time.Duration{s, s}},
		"doubling": {Backoff{First: s, Last: 5 * s, Tries: 5}, []time.Duration{s, 2 * s, 4 * s, 5 * s}},
		"a while":  {Backoff{First: 2 * s, Last: 8 * s, For: 9 * s}, []time.Duration{2 * s, 4 * s, 3 * s}},
		"no pause": {Backoff{Tries: 3}, []time.Duration{0, 0}},
	} {
		var elapsed time.Duration
		var got []time.Duration
		for n := 1; n < 10; n++ {
			pause, again := c.policy.Next(n, elapsed)
			if !again {
				break
			}
			got = append(got, pause)
			elapsed += pause
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
	}
	for range 100 {
		if pause, _ := (Backoff{First: s, Jitter: true}).Next(1, 0); pause < s/2 || pause > s {
			t.Fatalf("with jitter: %v", pause)
		}
	}
}

// A request without a server is given up as its policy says, and was not applied.
// Requests of other contexts wait on.
func TestRetry_GivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.Partition("a:2181")
		time.Sleep(7 * time.Second) // the connection is given up
		waits := make(chan error, 1)
		go func() {
			_, _, err := s.Exists(t.Context(), "/x")
			waits <- err
		}()
		ctx := WithRetry(t.Context(), Backoff{First: 500 * time.Millisecond, Tries: 3})
		began := time.Now()
		_, _, err := s.Create(ctx, "/x", nil, Persistent)
		if took := time.Since(began); !errors.Is(err, ErrNoServer) || errors.Is(err, ErrUnknown) || took != time.Second {
			t.Errorf("got %v after %v", err, took)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, _, err := s.Exists(ended, "/x"); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		srv.Heal()
		if err := <-waits; err != nil {
			t.Errorf("a request without a policy: %v", err)
		}
		if srv.Exists("/x") {
			t.Error("what was given up was applied")
		}
		if _, _, err := s.Create(ctx, "/x", nil, Persistent); err != nil {
			t.Errorf("with a connection: %v", err)
		}
	})
}

// A read whose connection is lost again and again is given up; one that succeeds
// within its tries is not.
func TestRetry_LostConnections(t *testing.T) {
	for _, tries := range []int{2, 4} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			s := dialMem(t, memConfig(srv))
			defer s.Close()
			for n := range 3 { // the connection is lost at the first three tries
				srv.LoseReply(jute.OpExists, n+1, false)
			}
			_, _, err := s.Exists(WithRetry(t.Context(), Backoff{First: time.Second, Last: time.Hour, Tries: tries}), "/x")
			if tries == 2 && !errors.Is(err, ErrNoServer) || tries == 4 && err != nil {
				t.Errorf("%d tries: %v", tries, err)
			}
		})
	}
}

func TestRetry_Each(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		m, stop := manage(t, memConfig(srv))
		defer stop()
		n := 0
		ctx := WithRetry(t.Context(), Backoff{First: time.Second, Tries: 4})
		err := m.Each(ctx, func(context.Context, *Session) error {
			n++
			return ErrThrottled
		})
		if n != 4 || !errors.Is(err, ErrThrottled) {
			t.Errorf("%d calls, %v", n, err)
		}
	})
}
