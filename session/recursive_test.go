package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// coverBubble runs f with servers of both kinds: a path and a connection have one
// watch before 3.9, and one of each kind from then on.
func coverBubble(t *testing.T, f func(t *testing.T, srv *memzk.Server, s *Session)) {
	t.Helper()
	for _, version := range []string{"3.8", "3.9"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := memzk.New(memzk.Options{TickTime: time.Second, Version: version})
				defer srv.Close()
				manyZnodes(t, srv, 10)
				s := dialMem(t, memConfig(srv))
				defer func() { _ = s.Close() }()
				f(t, srv, s)
			})
		})
	}
}

func mustWatch(t *testing.T, s *Session, path string) *RecursiveWatch {
	t.Helper()
	c, err := s.WatchRecursive(t.Context(), path)
	if err != nil || !c.Live() {
		t.Fatalf("cover %s: %v, live %v", path, err, c.Live())
	}
	return c
}

func getW(t *testing.T, s *Session, path string) *Watch {
	t.Helper()
	_, _, w, err := s.GetW(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// wantFired compares which of some watches have fired.
func wantFired(t *testing.T, what string, fired map[*Watch]bool) {
	t.Helper()
	synctest.Wait()
	for w, want := range fired {
		if got := w.Fired(); got != want {
			t.Errorf("%s: watch of %s fired: %v, want %v", what, w.Path(), got, want)
		}
	}
}

// One watch of the server stands in for those of all that is read below.
func TestRecursiveWatch_StandsIn(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		defer mustWatch(t, s, "/many").Release()
		results, err := s.GetManyW(t.Context(), []string{"/many/k000", "/many/k001", "/many/k002", "/many/k003"}, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		top := getW(t, s, "/many")
		_, _, none, err := s.ExistsW(t.Context(), "/many/k000/new")
		if err != nil {
			t.Fatal(err)
		}
		if got := srv.Watches(); got.Data+got.Children != 0 || got.Recursive != 1 {
			t.Errorf("the server has %+v", got)
		}
		if got := s.Requests(); got["setWatches"] != 0 || got["addWatch"] != 1 {
			t.Errorf("got requests %v", got)
		}
		err = errors.Join(srv.Create("/many/k000/new", nil), srv.Set("/many/k001", []byte("2")), srv.Delete("/many/k002"), srv.Set("/many", []byte("2")))
		if err != nil {
			t.Fatal(err)
		}
		wantFired(t, "changes", map[*Watch]bool{
			results[0].Watch: true, results[1].Watch: true, results[2].Watch: true, results[3].Watch: false, top: true, none: true,
		})
		if n := len(results[0].Watch.fires()); n != 1 {
			t.Errorf("a first child fired %d kinds, want the list alone", n)
		}
	})
}

// fires names what has fired.
func (w *Watch) fires() []watchKind {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	var of []watchKind
	for k := range watchChild + 1 {
		if w.fired.has(k) {
			of = append(of, k)
		}
	}
	return of
}

// Lists have watches of their own, also at the path of the cover, and also those
// that were there before it.
func TestRecursiveWatch_Lists(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		_, _, before, err := s.ChildrenW(t.Context(), "/many")
		if err != nil {
			t.Fatal(err)
		}
		defer mustWatch(t, s, "/many").Release()
		results, err := s.GetManyW(t.Context(), []string{"/many/k000", "/many/k001"}, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WatchChildren(t.Context(), []*Watch{results[0].Watch}); err != nil {
			t.Fatal(err)
		}
		if got := srv.Watches(); got.Children != 2 {
			t.Errorf("the server has %+v", got)
		}
		if err := errors.Join(srv.Create("/many/new", nil), srv.Create("/many/k000/new", nil)); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "new children", map[*Watch]bool{before: true, results[0].Watch: true, results[1].Watch: false})
	})
}

// A cover ends with its connection. The watches stay, and report what changed meanwhile.
func TestRecursiveWatch_Reconnect(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		c := mustWatch(t, s, "/many")
		defer c.Release()
		results, err := s.GetManyW(t.Context(), []string{"/many/k000", "/many/k001", "/many/k002"}, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		srv.DropConnections()
		if err := srv.Set("/many/k001", []byte("2")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		wantFired(t, "after a cut", map[*Watch]bool{results[0].Watch: false, results[1].Watch: true, results[2].Watch: false})
		if got := srv.Watches(); c.Live() || got.Recursive != 0 || got.Data != 2 || got.Children != 3 {
			t.Errorf("live %v, the server has %+v", c.Live(), got)
		}
		if err := srv.Set("/many/k002", []byte("2")); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "a change later", map[*Watch]bool{results[0].Watch: false, results[2].Watch: true})
	})
}

// The last user of a cover takes it off the server; watches of others that relied
// on it are set one by one.
func TestRecursiveWatch_Release(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		first, second := mustWatch(t, s, "/many"), mustWatch(t, s, "/many")
		top, below, list := getW(t, s, "/many"), getW(t, s, "/many/k000"), getW(t, s, "/many/k001")
		_, _, kids, err := s.ChildrenW(t.Context(), "/many")
		if err != nil {
			t.Fatal(err)
		}
		first.Release()
		if got := srv.Watches(); got.Recursive != 1 || !second.Live() {
			t.Errorf("one user is left; the server has %+v", got)
		}
		second.Release()
		synctest.Wait()
		if got := srv.Watches(); got.Recursive != 0 || got.Data != 3 || got.Children != 1 {
			t.Errorf("all have released it; the server has %+v", got)
		}
		if err := errors.Join(srv.Set("/many", nil), srv.Set("/many/k000", nil), srv.Create("/many/new", nil)); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "changes", map[*Watch]bool{top: true, below: true, list: false, kids: true})
	})
}

// A cover is released while the reply of a read that relies on it is on its way.
func TestRecursiveWatch_ReleaseOvertakesRead(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		c := mustWatch(t, s, "/many")
		srv.Delay(jute.OpGetData, time.Second)
		read := make(chan *Watch)
		go func() {
			_, _, w, _ := s.GetW(t.Context(), "/many/k000")
			read <- w
		}()
		synctest.Wait()
		c.Release()
		synctest.Wait()
		if err := srv.Set("/many/k000", []byte("2")); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "a change in between", map[*Watch]bool{<-read: true})
	})
}

// A data watch at the path of a cover, sent after the cover though it was begun
// before, replaces it on servers before 3.9.
func TestRecursiveWatch_Replaced(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		c := mustWatch(t, s, "/many")
		defer c.Release()
		below := getW(t, s, "/many/k000")
		conn, err := s.connection(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		late, ask := s.watches.begin(nil, "/many", watchData.set()) // as without the cover
		q := &call{op: jute.OpGetData, watch: late, done: make(chan struct{}), frame: newFrame(jute.OpGetData, "/many", ask)}
		if !ask || !conn.send(q) {
			t.Fatal("not sent")
		}
		<-q.done
		if err := srv.Set("/many/k000", []byte("2")); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "a change", map[*Watch]bool{below: true, late: false})
		if c.Live() {
			t.Error("the cover is live")
		}
		if err := srv.Set("/many", []byte("2")); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "a change at the top", map[*Watch]bool{late: true})
	})
}

// A cover is asked for again while the server is taking the former one away.
func TestRecursiveWatch_AgainAtOnce(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		c := mustWatch(t, s, "/many")
		top := getW(t, s, "/many")
		_, _, kids, err := s.ChildrenW(t.Context(), "/many")
		if err != nil {
			t.Fatal(err)
		}
		srv.Delay(jute.OpRemoveWatches, time.Second)
		c.Release()
		defer mustWatch(t, s, "/many").Release()
		below := getW(t, s, "/many/k000")
		if err := errors.Join(srv.Set("/many/k000", nil), srv.Set("/many", nil), srv.Create("/many/new", nil)); err != nil {
			t.Fatal(err)
		}
		wantFired(t, "changes", map[*Watch]bool{top: true, below: true, kids: true})
	})
}

// A server that does not know addWatch, or has something against it, is asked once.
func TestRecursiveWatch_Refused(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		for i, refuse := range []func(){
			func() { srv.Refuse(jute.OpAddWatch) },
			func() { srv.RefuseWith(jute.OpAddWatch, jute.ErrCodeMarshallingError) },
		} {
			clear(s.able().until) // another server
			refuse()
			for range 2 {
				if c, err := s.WatchRecursive(t.Context(), "/many"); !errors.Is(err, ErrUnimplemented) || c.Live() {
					t.Errorf("got %v, live %v", err, c.Live())
				}
			}
			if got := s.Requests()["addWatch"]; got != uint64(i+1) {
				t.Errorf("asked %d times, want %d", got, i+1)
			}
			w := getW(t, s, "/many/k000")
			if err := srv.Set("/many/k000", fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
			wantFired(t, "a change", map[*Watch]bool{w: true})
		}
	})
}

// A cover whose reply does not come ends with its context.
func TestRecursiveWatch_Cancelled(t *testing.T) {
	coverBubble(t, func(t *testing.T, srv *memzk.Server, s *Session) {
		srv.Delay(jute.OpAddWatch, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if c, err := s.WatchRecursive(ctx, "/many"); !errors.Is(err, context.DeadlineExceeded) || c != nil {
			t.Errorf("got %v", err)
		}
		time.Sleep(5 * time.Second)
		if got := srv.Watches(); got.Recursive != 0 {
			t.Errorf("the server has %+v", got)
		}
	})
}
