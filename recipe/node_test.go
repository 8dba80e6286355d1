package recipe

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// keep runs a node until the test ends.
func keep(t *testing.T, s *session.Session, cfg NodeConfig) *Node {
	t.Helper()
	n := NewNode(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, s) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return n
}

func (w *world) data(path string) string {
	n, err := w.Get(path)
	if err != nil {
		return err.Error()
	}
	return string(n.Data)
}

// A set whose reply was lost is sent again when it was not applied, and not when
// it was.
func TestNode_SetWhoseReplyWasLost(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("lost before it was applied: ", before), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := keep(t, w.dial("a"), NodeConfig{Path: "/g/n", Data: []byte("one")})
				w.LoseReply(jute.OpSetData, 1, before)
				n.SetData([]byte("two"))
				settle()
				if got := w.data("/g/n"); got != "two" {
					t.Errorf("got %q, want the newest data", got)
				}
				if got := w.Requests()["setData"]; before && got != 2 || !before && got != 1 {
					t.Errorf("%d sets", got)
				}
			})
		})
	}
}

// A change of the data is one request.
func TestNode_AChangeIsOneRequest(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		n := keep(t, s, NodeConfig{Path: "/g/n", Data: []byte("0")})
		before := total(s)
		for i := range 10 {
			n.SetData(fmt.Append(nil, i+1))
			synctest.Wait()
		}
		if got := total(s) - before; got != 10 || w.data("/g/n") != "10" {
			t.Errorf("%d requests for 10 changes, %q at the end", got, w.data("/g/n"))
		}
	})
}

// Two nodes that one session keeps at one path do not fight: the writes of each
// become rare.
func TestNode_TwoOfOneSessionDoNotFight(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		a := keep(t, s, NodeConfig{Path: "/g/n", Data: []byte("a")})
		keep(t, s, NodeConfig{Path: "/g/n", Data: []byte("b")})
		for i := range 60 {
			a.SetData(fmt.Append(nil, "a", i%2))
			w.DropConnections()
			time.Sleep(time.Second)
		}
		if got := w.Requests()["setData"]; got > 140 {
			t.Errorf("%d writes for 60 changes in a minute", got)
		}
	})
}

// What somebody deletes again and again is made again more and more rarely.
func TestNode_DeletedAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		keep(t, w.dial("a"), NodeConfig{Path: "/g/n"})
		w.ResetRequests()
		for range 600 {
			if w.Exists("/g/n") {
				must(t, w.Delete("/g/n"))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := w.Requests()["create2"]; got < 2 || got > 20 {
			t.Errorf("created %d times in a minute", got)
		}
	})
}

// A keeper waits for the znode of another live session, reports it, and never deletes it.
func TestNode_BlockedByAnotherSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		reported := make(chan error, 10)
		other := w.dial("other")
		keep(t, other, NodeConfig{Path: "/g/n", Data: []byte("other")})
		keep(t, w.dial("a"), NodeConfig{Path: "/g/n", Data: []byte("ours"), Blocked: func(err error) { reported <- err }})
		w.DropConnections()
		settle()
		if got := w.data("/g/n"); got != "other" {
			t.Fatalf("the other's znode holds %q", got)
		}
		if err := <-reported; !errors.Is(err, ErrHeld) {
			t.Errorf("told %v", err)
		}
		w.ExpireSession(other.ID())
		settle()
		if got := w.data("/g/n"); got != "ours" {
			t.Errorf("after it left: %q", got)
		}
		if err := <-reported; err != nil || len(reported) > 0 {
			t.Errorf("told %v, and %d more", err, len(reported))
		}
	})
}

func TestNode_KeepLeavesTheZnode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- NewNode(NodeConfig{Path: "/g/n", Keep: true}).Run(ctx, s) }()
		synctest.Wait()
		cancel()
		must(t, <-done)
		if !w.Exists("/g/n") {
			t.Error("deleted")
		}
	})
}

// Owned is called each time that the session gets the znode, and each time that it
// loses it.
func TestNode_OwnedTells(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		reported := make(chan bool, 10)
		want := func(what string, want ...bool) {
			t.Helper()
			for _, mine := range want {
				if len(reported) == 0 || <-reported != mine {
					t.Fatalf("%s: not told %v of %v", what, mine, want)
				}
			}
			if len(reported) > 0 {
				t.Fatalf("%s: told %d more", what, len(reported))
			}
		}
		other := w.dial("other")
		keep(t, other, NodeConfig{Path: "/g/n", Data: []byte("other")})
		ctx, cancel := context.WithCancel(t.Context())
		done, a := make(chan error), w.dial("a")
		go func() {
			done <- NewNode(NodeConfig{Path: "/g/n", Data: []byte("ours"), Owned: func(mine bool) { reported <- mine }}).Run(ctx, a)
		}()
		settle()
		want("while another session's stands")
		w.ExpireSession(other.ID())
		settle()
		want("when it has gone", true)
		must(t, w.Delete("/g/n"))
		settle()
		want("after a deletion", false, true)
		w.DropConnections()
		settle()
		want("after a reconnect")
		cancel()
		must(t, <-done)
		want("at the end", false)
	})
}

// Run ends while it does not know whether its znode was created. It leaves none.
func TestNode_EndsAfterALostReply(t *testing.T) {
	for name, cfg := range map[string]NodeConfig{
		"fixed":     {Path: "/d/n"},
		"protected": {Path: "/d/n-", Mode: session.EphemeralSequential},
		"sequence":  {Path: "/d/n_", Internal: keeper.Config{Sequence: &keeper.Sequence{}}},
	} {
		bubble(t, func(t *testing.T, w *world) {
			must(t, w.Create("/d", nil))
			s := w.dial("a")
			ctx, cancel := context.WithCancel(t.Context())
			lost := w.LoseReply(jute.OpCreate2, 1, false)
			go func() {
				<-lost
				w.Partition("a:2181")
				cancel()
			}()
			_ = NewNode(cfg).Run(ctx, s)
			time.Sleep(time.Second)
			w.ClearFaults()
			w.Heal()
			time.Sleep(5 * time.Second)
			if left := w.leftovers("/d"); len(left) > 0 || s.Context().Err() != nil {
				t.Errorf("%s: left are %v, %v", name, left, s.Context().Err())
			}
		})
	}
}
