package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/memzk"
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
