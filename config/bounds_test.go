package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The names of keys take memory, too: a plain tree of many long ones is over its bound.
// The last good tree stays in use, and is followed again when it is small enough.
func TestPlain_NamesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		t.Cleanup(srv.Close)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(srv.Create("/c/a", []byte("1")))
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: srv.Dial})
		must(err)
		t.Cleanup(func() { _ = s.Close() })
		trees := make(chan *view.Tree, 100)
		w := NewWatcher(Config{Name: "c", Path: "/c", Layout: LayoutPlain, MaxBytes: 10_000})
		go func() {
			_ = w.Run(t.Context(), s, func(u view.Update) {
				if tree, ok := u.(*view.Tree); ok {
					trees <- tree
				}
			})
		}()
		if tree := <-trees; tree.Len() != 1 {
			t.Fatalf("got %d keys", tree.Len())
		}
		long := func(i int) string { return fmt.Sprintf("/c/%d%s", i, strings.Repeat("x", 500)) }
		for i := range 30 {
			must(srv.Create(long(i), nil))
		}
		time.Sleep(5 * time.Second)
		if st := w.Status(); !errors.Is(st.Err, ErrBounds) {
			t.Errorf("got %v", st.Err)
		}
		for len(trees) > 0 {
			<-trees // some of the keys, seen on the way
		}
		for i := range 30 {
			must(srv.Delete(long(i)))
		}
		must(srv.Set("/c/a", []byte("2")))
		time.Sleep(2 * time.Minute)
		if st := w.Status(); st.Err != nil {
			t.Errorf("still %v", st.Err)
		}
		if v, _ := w.last.Keys().Get("a"); string(v.Value) != "2" {
			t.Errorf("got %q", v.Value)
		}
	})
}
