package recipe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The keeper writes a znode with a TTL often enough that it stays. The znode outlives
// its session, and the next session takes it up. Without a keeper it goes.
func TestNode_TTL(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const ttl = 90 * time.Second
		n := NewNode(NodeConfig{Path: "/g/n/touch", Data: []byte("x"), Mode: session.PersistentTTL(ttl)})
		run := func(name string) {
			s := w.dial(name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- n.Run(ctx, s) }()
			sets := w.Requests()["setData"]
			for range 20 {
				time.Sleep(ttl / 2)
				if w.data("/g/n/touch") != "x" {
					t.Fatal("the znode went although it is kept")
				}
			}
			if got := w.Requests()["setData"] - sets; got < 20 || got > 40 {
				t.Errorf("%d writes in ten TTLs, want about three a TTL", got)
			}
			cancel()
			must(t, <-done)
			_ = s.Close()
		}
		run("a")
		time.Sleep(ttl / 2)
		if !w.Exists("/g/n/touch") {
			t.Error("the znode went with its session")
		}
		run("b")
		time.Sleep(10 * time.Minute)
		if w.Exists("/g/n/touch") || w.Exists("/g/n") {
			t.Error("the znode, or its container, stands without a keeper")
		}
	})
}

// A sequential node keeps its name over a deletion and over sessions, also when
// the reply to its first create is lost.
func TestNode_SequentialKeepsItsName(t *testing.T) {
	for _, mode := range []session.Mode{session.EphemeralSequential, session.PersistentSequential, session.PersistentSequentialTTL(time.Hour)} {
		bubble(t, func(t *testing.T, w *world) {
			n := NewNode(NodeConfig{Path: "/g/n-", Data: []byte("x"), Mode: mode})
			if n.Path() != "" {
				t.Errorf("a path before it is created: %q", n.Path())
			}
			a := w.dial("a")
			must(t, a.CreateParents(t.Context(), "/g/x"))
			w.LoseReply(-1, 1, false)
			done := make(chan error, 1)
			go func() { done <- n.Run(t.Context(), a) }()
			settle()
			first := n.Path()
			if !strings.HasPrefix(first, "/g/_c_") || !strings.HasSuffix(first, "-n-0000000000") {
				t.Fatalf("got the name %q", first)
			}
			must(t, w.Delete(first))
			settle()
			if w.data(first) != "x" {
				t.Errorf("not made again: %v", w.data(first))
			}
			w.ExpireSession(a.ID())
			if err := <-done; !errors.Is(err, session.ErrExpired) {
				t.Errorf("ended with %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { done <- n.Run(ctx, w.dial("b")) }()
			settle()
			if n.Path() != first || w.data(first) != "x" {
				t.Errorf("in the next session: %q, %q", n.Path(), w.data(first))
			}
			if list := below(w, "/g"); len(list) != 1 {
				t.Errorf("more than one znode: %v", list)
			}
			cancel()
			must(t, <-done)
			settle()
			if standing := w.Exists(first); standing != (mode.TTL() > 0) {
				t.Errorf("stands after Run: %v", standing)
			}
		})
	}
}

// A container that the server took away is made again; an ephemeral znode in its
// place is waited for.
func TestNode_Container(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		other := w.dial("other")
		_, _, err := other.Create(t.Context(), "/n", nil, session.Ephemeral)
		must(t, err)
		blocked := make(chan error, 2) // size 2: blocked, and no longer
		keep(t, w.dial("a"), NodeConfig{Path: "/n", Data: []byte("x"), Mode: session.Container, Blocked: func(err error) { blocked <- err }})
		if err := <-blocked; !errors.Is(err, ErrHeld) {
			t.Errorf("blocked: %v", err)
		}
		must(t, other.Delete(t.Context(), "/n", -1))
		must(t, <-blocked)
		synctest.Wait()
		_, _, err = other.Create(t.Context(), "/n/child", nil, session.Persistent)
		must(t, err)
		must(t, other.Delete(t.Context(), "/n/child", -1))
		before := w.Requests()["createContainer"]
		time.Sleep(5 * time.Minute)
		if w.data("/n") != "x" || w.Requests()["createContainer"] != before+1 {
			t.Errorf("%d creates after the server took it away, data %q", w.Requests()["createContainer"]-before, w.data("/n"))
		}
	})
}

// below returns the paths below root that are not markers.
func below(w *world, root string) []string {
	var list []string
	for path := range w.Tree() {
		if strings.HasPrefix(path, root+"/") {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list
}
