package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// The lease counts from when an answered request was sent: the server has heard
// from us no later than that. When the answer came says nothing.
func TestSession_LeaseCountsFromTheSending(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.Delay(jute.OpPing, time.Second)
		last := s.LastAnswer()
		for answers := 0; answers < 3; {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			at := s.LastAnswer()
			if at.Equal(last) {
				continue
			}
			if age := time.Since(at); age < time.Second {
				t.Errorf("a ping that was answered after a second counts from %s ago", age)
			}
			last = at
			answers++
		}
		srv.Delay(jute.OpPing, 0)
		srv.Delay(jute.OpGetData, time.Second)
		sent := time.Now() // no ping goes out in the next second
		if _, _, err := s.Get(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if at := s.LastAnswer(); at.After(sent) {
			t.Errorf("a read that was answered after a second counts from %s after its sending", at.Sub(sent))
		}
	})
}

// Go's clock stops while the machine sleeps. The lease does not: it is over when the
// machine wakes, though nothing has noticed the time that passed.
func TestSession_LeaseRunsOutInSleep(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var asleep atomic.Int64
		cfg := memConfig(srv)
		cfg.slept = func() time.Duration { return time.Duration(asleep.Load()) }
		s := dialMem(t, cfg)
		defer s.Close()
		held, cancel := s.WithLease(t.Context())
		defer cancel()
		if !s.Held() {
			t.Fatal("no lease")
		}
		before := s.Lease()
		srv.CutClientToServer()
		asleep.Add(int64(s.Timeout()))
		if s.Held() {
			t.Error("the lease runs after a sleep of a session timeout")
		}
		if d := before.Sub(s.Lease()); d != s.Timeout() {
			t.Errorf("the lease moved by %s", d)
		}
		woke := time.Now()
		<-held.Done()
		if d := time.Since(woke); d > time.Second || !errors.Is(context.Cause(held), ErrSuspended) {
			t.Errorf("%s after the sleep: %v", d, context.Cause(held))
		}

		// An answer to what was sent before the sleep says nothing about now.
		srv.Heal()
		if _, _, err := s.Get(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if !s.Held() {
			t.Error("no lease after an answer")
		}
		srv.Delay(jute.OpGetData, time.Second)
		go func() {
			time.Sleep(100 * time.Millisecond)
			asleep.Add(int64(s.Timeout()))
		}()
		if _, _, err := s.Get(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if s.Held() {
			t.Error("the answer to a request from before the sleep gave a lease")
		}
	})
}

// The machine's sleep is the difference of two clocks, and nothing where it stays awake.
func TestSlept(t *testing.T) {
	if d := slept(); d != 0 {
		t.Errorf("slept %s within a test", d)
	}
	if asleep < -time.Second {
		t.Errorf("the clock that goes on in sleep is behind by %s", -asleep)
	}
}
