package registry

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The names of the groups of a set are anybody's text: a child whose name is no name is
// no group.
func TestGroups_NamesThatAreNoNames(t *testing.T) {
	hostile := []string{"x { server 6.6.6.6; } server { root ;} upstream y", "$(id)", "-rf", "`id`", "a\"b", "a\u202eb", "~x"}
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		t.Cleanup(srv.Close)
		for _, name := range append([]string{"good"}, hostile...) {
			if err := srv.Create("/sets/"+name+"/m1", record(1)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		g := NewGroups(GroupsConfig{Name: "all", Path: "/sets"})
		got, done := make(chan *view.Groups, 100), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- g.Run(ctx, s, func(v *view.Groups) { got <- v }) }()
		set := <-got
		slices.Sort(hostile)
		if len(set.Groups) != 1 || set.Groups[0].Name != "good" || !slices.Equal(set.RawNames, hostile) {
			t.Errorf("got %d groups, raw names %q", len(set.Groups), set.RawNames)
		}
		for _, name := range hostile {
			if err := srv.Delete("/sets/" + name + "/m1"); err != nil {
				t.Fatal(err)
			}
			if err := srv.Delete("/sets/" + name); err != nil {
				t.Fatal(err)
			}
		}
		for len(set.RawNames) > 0 {
			set = <-got
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
