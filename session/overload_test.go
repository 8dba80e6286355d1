package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// Servers that have more new sessions to make than they can are asked less and less
// often, and a host waits longer for their answers.
func TestOverload_SilentServersAreAskedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{})
		defer srv.Close()
		srv.Delay(jute.OpCreateSession, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := Dial(ctx, Config{Servers: []string{"a:2181", "b:2181", "c:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial}); err == nil {
			t.Fatal("there is a session")
		}
		// 3, 3, 6, 12, 24 and then 30 s, between them half of 6, 12, 24, 48, 96 and 120 s to all of it.
		if n := srv.Handshakes(); n < 6 || n > 12 {
			t.Errorf("%d handshakes in ten minutes, want about nine", n)
		}
	})
}

// A server that answers late, but not too late, has the session.
func TestOverload_LateAnswerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{})
		defer srv.Close()
		srv.Delay(jute.OpCreateSession, 20*time.Second)
		s, err := Dial(t.Context(), Config{Servers: []string{"a:2181"}, Timeout: 40 * time.Second, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if n := srv.Handshakes(); n > 6 {
			t.Errorf("%d handshakes until one was waited for", n)
		}
	})
}

// One server that hangs costs a new session no more than the time of its handshake.
func TestOverload_OneOfTwoHangs(t *testing.T) {
	for range 10 { // in either order
		synctest.Test(t, func(t *testing.T) {
			srv := memzk.New(memzk.Options{})
			defer srv.Close()
			srv.Partition("hung:2181")
			start := time.Now()
			s, err := Dial(t.Context(), Config{Servers: []string{"hung:2181", "good:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}
