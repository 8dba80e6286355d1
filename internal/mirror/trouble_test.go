package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

var (
	openACL   = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}
	closedACL = []jute.ACL{{Perms: jute.PermAll &^ jute.PermRead, Scheme: "world", ID: "anyone"}}
)

// bed is a mirror of /r in virtual time.
type bed struct {
	t     *testing.T
	z     *memzk.Server
	s     *session.Session
	snaps []*Snapshot
}

func inBed(t *testing.T, opt Options, znodes map[string]string, before func(*memzk.Server), f func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		z := memzk.New(memzk.Options{TickTime: time.Second})
		defer z.Close()
		for _, path := range slices.Sorted(func(yield func(string) bool) {
			for p := range znodes {
				if !yield(p) {
					return
				}
			}
		}) {
			must(t, z.Create(path, []byte(znodes[path])))
		}
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: z.Dial})
		must(t, err)
		defer func() { _ = s.Close() }()
		if before != nil {
			before(z)
		}
		b := &bed{t: t, z: z, s: s}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- copyTree(ctx, s, "/r", opt, func(snap *Snapshot) { b.snaps = append(b.snaps, snap) })
		}()
		synctest.Wait()
		f(b)
		cancel()
		must(t, <-done)
	})
}

func (b *bed) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// last are the contents of the newest snapshot, and its errors.
func (b *bed) last() string {
	if len(b.snaps) == 0 {
		return "nothing"
	}
	snap := b.snaps[len(b.snaps)-1]
	text := fmt.Sprint(contents(snap))
	for _, rel := range slices.Sorted(func(yield func(string) bool) {
		for r := range snap.Errors() {
			if !yield(r) {
				return
			}
		}
	}) {
		text += fmt.Sprintf(" !%q", rel)
	}
	return text
}

func (b *bed) want(when, want string) {
	b.t.Helper()
	if got := b.last(); got != want {
		b.t.Errorf("%s: got %s, want %s", when, got, want)
	}
}

// The mirror reports a failed list until it can read it, whatever the data says: at the
// root, and below it. There is no hot loop meanwhile.
func TestTrouble_FailedListIsNotForgotten(t *testing.T) {
	znodes := map[string]string{"/r": "0", "/r/a": "1", "/r/a/b": "2"}
	lists := []int32{jute.OpGetChildren2, jute.OpGetChildren}
	refuse := func(z *memzk.Server) {
		for _, op := range lists {
			z.RefuseWith(op, jute.ErrCodeThrottled)
		}
	}
	inBed(t, Options{}, znodes, refuse, func(b *bed) {
		b.sleep(10 * time.Minute)
		for _, snap := range b.snaps {
			if len(snap.Errors()) == 0 {
				t.Errorf("passed on as good: %v", contents(snap))
			}
		}
		if n := b.z.Requests()["getChildren2"]; n > 40*maxTries {
			t.Errorf("%d lists in ten minutes", n)
		}
		for _, op := range lists {
			b.z.Allow(op)
		}
		b.sleep(lastRetry)
		b.want("at the root", "map[:0 a:1 a/b:2]")
		refuse(b.z)
		must(b.t, b.z.Create("/r/a/c", []byte("3")))
		b.sleep(3 * time.Second)
		b.want("below", `map[:0 a:1 a/b:2] !"a"`)
		must(b.t, b.z.Set("/r/a", []byte("4")))
		b.sleep(3 * time.Second)
		b.want("below, and its data changed", `map[:0 a:4 a/b:2] !"a"`)
		for _, op := range lists {
			b.z.Allow(op)
		}
		b.sleep(lastRetry)
		b.want("below, at the end", "map[:0 a:4 a/b:2 a/c:3]")
	})
}

// maxTries is how often the session sends a request again that was thrown away.
const maxTries = 6

// A tree that changes all the time does not keep the mirror from trying again what
// could not be read; and each znode waits for itself.
func TestTrouble_RetryDoesNotStarve(t *testing.T) {
	znodes := map[string]string{"/r": "", "/r/a": "1", "/r/b": "2"}
	inBed(t, Options{}, znodes, func(z *memzk.Server) { must(t, z.SetACL("/r/b", closedACL)) }, func(b *bed) {
		for range 60 { // five minutes: the back-off is at its end
			must(b.t, b.z.Set("/r/a", []byte("1")))
			b.sleep(5 * time.Second)
		}
		b.want("closed", `map[: a:1] !"b"`)
		must(b.t, b.z.SetACL("/r/b", openACL))
		for range 13 {
			must(b.t, b.z.Set("/r/a", []byte("1")))
			b.sleep(5 * time.Second)
		}
		b.want("opened a minute ago", "map[: a:1 b:2]")
		before := b.z.Requests()["getData"]
		must(b.t, b.z.SetACL("/r/b", closedACL))
		must(b.t, b.z.Set("/r/b", []byte("3")))
		b.sleep(10 * time.Minute)
		if n := b.z.Requests()["getData"] - before; n > 30 {
			t.Errorf("%d reads of an unreadable znode in ten minutes", n)
		}
	})
}

// Events that an ACL swallows are made up for: of data, of a list, of the root.
func TestTrouble_SwallowedEvents(t *testing.T) {
	znodes := map[string]string{"/r": "0", "/r/a": "1", "/r/d": "1", "/r/d/e": "2"}
	for name, change := range map[string]struct {
		path string
		do   func(z *memzk.Server) error
		want string
	}{
		"data":            {"/r/a", func(z *memzk.Server) error { return z.Set("/r/a", []byte("9")) }, "map[:0 a:9 d:1 d/e:2]"},
		"root data":       {"/r", func(z *memzk.Server) error { return z.Set("/r", []byte("9")) }, "map[:9 a:1 d:1 d/e:2]"},
		"root list":       {"/r", func(z *memzk.Server) error { return z.Create("/r/b", []byte("9")) }, "map[:0 a:1 b:9 d:1 d/e:2]"},
		"list":            {"/r/d", func(z *memzk.Server) error { return z.Create("/r/d/f", []byte("9")) }, "map[:0 a:1 d:1 d/e:2 d/f:9]"},
		"list of a leaf":  {"/r/a", func(z *memzk.Server) error { return z.Create("/r/a/b", []byte("9")) }, "map[:0 a:1 a/b:9 d:1 d/e:2]"},
		"deleted":         {"/r/d", func(z *memzk.Server) error { return z.Delete("/r/d/e") }, "map[:0 a:1 d:1]"},
		"nothing happens": {"/r/d", func(*memzk.Server) error { return nil }, "map[:0 a:1 d:1 d/e:2]"},
	} {
		inBed(t, Options{}, znodes, nil, func(b *bed) {
			b.sleep(time.Second)
			must(b.t, b.z.SetACL(change.path, closedACL))
			must(b.t, change.do(b.z))
			must(b.t, b.z.SetACL(change.path, openACL))
			b.sleep(2 * time.Minute)
			b.want(name, change.want)
			before := len(b.snaps)
			b.sleep(time.Hour)
			b.want(name+", an hour later", change.want)
			if n := len(b.snaps) - before; n > 120 {
				t.Errorf("%s: %d snapshots", name, n)
			}
		})
	}
}

// What looking without events costs: in an hour some 80 times the root and at most
// eight others.
func TestTrouble_CostOfLooking(t *testing.T) {
	znodes := map[string]string{"/r": ""}
	for i := range 1000 {
		znodes[fmt.Sprintf("/r/k%03d", i)] = "x"
	}
	inBed(t, Options{}, znodes, nil, func(b *bed) {
		b.z.ResetRequests()
		b.sleep(time.Hour)
		got := b.z.Requests()
		if n := got["exists"]; n < 60 || n > 121*(1+recheckFew) {
			t.Errorf("%d looks in an hour", n)
		}
		if got["getData"]+got["multiRead"]+got["getChildren2"] > 0 {
			t.Errorf("requests for nothing: %v", got)
		}
	})
}

// The mirror reports a tree over the limit with its size and without data. The tree comes
// back when it is small enough. It may be too large from the start or grow, in one znode
// or in many.
func TestTrouble_TooLarge(t *testing.T) {
	for _, n := range []int{3, 40} {
		znodes := map[string]string{"/r": ""}
		for i := range n {
			znodes[fmt.Sprintf("/r/k%03d", i)] = strings.Repeat("x", 1000)
		}
		for _, limit := range []int{n * 500, n*1000 + 10} {
			inBed(t, Options{MaxBytes: int64(limit)}, znodes, nil, func(b *bed) {
				if limit > n*1000 {
					if snap := b.snaps[0]; snap.TooLarge || snap.Bytes != int64(n*1000) {
						t.Fatalf("%d bytes, too large %v", snap.Bytes, snap.TooLarge)
					}
					must(b.t, b.z.Set("/r/k000", []byte(strings.Repeat("x", 1011))))
					b.sleep(time.Second)
				}
				snap := b.snaps[len(b.snaps)-1]
				if !snap.TooLarge || snap.Bytes < int64(n*1000) || snap.Len() != n+1 {
					t.Fatalf("%d of %d: %d bytes in %d znodes, too large %v", limit, n, snap.Bytes, snap.Len(), snap.TooLarge)
				}
				snap.Walk(func(rel string, z *Node) bool {
					if z.Data != nil && rel != "" {
						t.Errorf("%s is kept", rel)
					}
					return true
				})
				for i := n / 3; i < n; i++ {
					must(b.t, b.z.Set(fmt.Sprintf("/r/k%03d", i), []byte("y")))
				}
				must(b.t, b.z.Delete("/r/k000"))
				b.sleep(time.Second)
				snap = b.snaps[len(b.snaps)-1]
				got := contents(snap)
				if snap.TooLarge || len(got) != n || got["k002"] == "" {
					t.Errorf("%d of %d: %d znodes, too large %v, %d bytes", limit, n, len(got), snap.TooLarge, snap.Bytes)
				}
			})
		}
	}
}

// A recursive watch gets no event about a child that the session may not read. The watch
// of its parent's list gets one at once.
func TestTrouble_UnreadableChildUnderACover(t *testing.T) {
	znodes := map[string]string{"/r": ""}
	for i := range 20 {
		znodes[fmt.Sprintf("/r/d%02d", i)] = ""
		znodes[fmt.Sprintf("/r/d%02d/e", i)] = "1"
	}
	inBed(t, Options{coverFrom: 1}, znodes, nil, func(b *bed) {
		b.sleep(time.Second)
		other, err := session.Dial(b.t.Context(), session.Config{Servers: []string{"b:2181"}, Timeout: 12 * time.Second, Dial: b.z.Dial})
		must(b.t, err)
		closed := session.ACL{Perms: session.PermAll &^ session.PermRead, Scheme: "world", ID: "anyone"}
		_, _, err = other.Create(b.t.Context(), "/r/d07/x", []byte("1"), session.Persistent, closed)
		must(b.t, err)
		b.sleep(time.Second)
		if got := b.last(); !strings.HasSuffix(got, ` !"d07/x"`) {
			b.t.Errorf("got %s, want an error of d07/x", got)
		}
		must(b.t, other.Close())
	})
}

// A child that cannot be read has no watch of its own: that it is gone is known by
// the list alone, also when it was the last.
func TestTrouble_LastChildVanishes(t *testing.T) {
	znodes := map[string]string{"/r": "", "/r/a": "1", "/r/y": "2", "/r/z": "3"}
	closed := func(z *memzk.Server) { must(t, errors.Join(z.SetACL("/r/y", closedACL), z.SetACL("/r/z", closedACL))) }
	inBed(t, Options{}, znodes, closed, func(b *bed) {
		b.sleep(10 * time.Minute) // retries are far apart
		b.want("closed", `map[: a:1] !"y" !"z"`)
		must(b.t, errors.Join(b.z.Delete("/r/y"), b.z.Delete("/r/z")))
		b.sleep(100 * time.Millisecond)
		b.want("deleted", `map[: a:1]`)
	})
}

// A subtree becomes small enough, and grows again while it is read: its data is not
// kept.
func TestTrouble_GrowsWhileItIsReadAgain(t *testing.T) {
	big := strings.Repeat("x", 90)
	inBed(t, Options{MaxBytes: 80}, map[string]string{"/r": "", "/r/a": big}, nil, func(b *bed) {
		if !b.snaps[0].TooLarge {
			t.Fatal("the subtree is not too large")
		}
		grown := false
		b.z.Hold(func(h memzk.Held) <-chan struct{} {
			if h.Op == jute.OpGetData && !grown && strings.Contains(string(h.Body), "/r/a") {
				grown = true
				must(t, b.z.Set("/r/a", []byte(big)))
			}
			return nil
		})
		must(t, b.z.Set("/r/a", []byte("small")))
		b.sleep(time.Second)
		if !grown {
			t.Fatal("it was not read again")
		}
		for _, snap := range b.snaps {
			kept := 0
			snap.Walk(func(_ string, n *Node) bool { kept += len(n.Data); return true })
			if kept > 80 || snap.TooLarge != (snap.Bytes > 80) {
				t.Errorf("%d bytes kept, %d in all, too large: %v", kept, snap.Bytes, snap.TooLarge)
			}
		}
		must(t, b.z.Set("/r/a", []byte("small")))
		b.sleep(time.Second)
		if snap := b.snaps[len(b.snaps)-1]; snap.TooLarge || snap.Bytes != 5 {
			t.Errorf("at the end: %d bytes, too large: %v", snap.Bytes, snap.TooLarge)
		}
	})
}

// A deleted znode is not read, however late the event of its parent's list comes. If that
// never comes, the znode is looked at after a while. One that is listed again is read.
func TestRefresh_DeletedIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := memzk.New(memzk.Options{TickTime: time.Second})
		defer z.Close()
		for _, path := range []string{"/r/a", "/r/b"} {
			must(t, z.Create(path, []byte("1")))
		}
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: z.Dial})
		must(t, err)
		defer func() { _ = s.Close() }()
		m := New(s, "/r", Options{Depth: 1})
		defer m.Close()
		refresh := func(want map[string]string, reads uint64) {
			t.Helper()
			z.ResetRequests()
			snap, _, err := m.Refresh(t.Context())
			must(t, err)
			if got := contents(snap); !maps.Equal(got, want) || z.Requests()["getData"] != reads || len(snap.Errors()) > 0 {
				t.Errorf("got %v with requests %v, errors %v", got, z.Requests(), snap.Errors())
			}
		}
		both := map[string]string{"": "", "a": "1", "b": "1"}
		refresh(both, 3)
		m.todo.mark(mark{rel: "a", gone: true}) // and the event of the list is on its way
		refresh(both, 0)
		m.todo.mark(mark{kids: true}) // it was created again
		refresh(both, 1)
		m.todo.mark(mark{rel: "b", gone: true})
		refresh(both, 0)
		time.Sleep(lastRetry)
		<-m.Dirty()
		refresh(both, 1)
		must(t, z.Delete("/r/b"))
		synctest.Wait()
		refresh(map[string]string{"": "", "a": "1"}, 0)
	})
}

// A znode with more children than may be copied has the others named.
func TestRefresh_MaxChildren(t *testing.T) {
	znodes := map[string]string{"/r/a": "", "/r/b": "", "/r/c": "", "/r/c/x": "", "/r/c/y": ""}
	bound := func(rel string) int { return map[string]int{"": 2, "c": 1}[rel] }
	inBed(t, Options{MaxChildren: bound}, znodes, nil, func(b *bed) {
		over := func(rel string, copied, left []string) {
			t.Helper()
			synctest.Wait()
			n, _ := b.snaps[len(b.snaps)-1].Get(rel)
			if !slices.Equal(n.Children, copied) || !slices.Equal(n.Over, left) {
				t.Errorf("%q: copied %v, left %v", rel, n.Children, n.Over)
			}
		}
		over("", []string{"a", "b"}, []string{"c"})
		must(t, b.z.Delete("/r/a"))
		over("", []string{"b", "c"}, nil)
		over("c", []string{"x"}, []string{"y"})
	})
}
