package election

import (
	"errors"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

func TestReal_ResignPassesOn(t *testing.T) {
	for _, dialect := range []string{recipe.Curator, recipe.CuratorSelector, recipe.Kazoo} {
		t.Run(dialect, func(t *testing.T) {
			ctx, path := testContext(t), zktest.Root(t)+"/election"
			s1, s2 := dialReal(t), dialReal(t)
			a := run(t, s1, Config{Name: "e", Path: path, ID: "a", Dialect: dialect, Observe: true})
			first := recv(ctx, t, a.terms)
			b := run(t, s2, Config{Name: "e", Path: path, ID: "b", Dialect: dialect, Observe: true})
			if got, want := recv(ctx, t, b.updates), (view.Leader{Name: "e", Path: path, ID: "a", Term: first.ID}); got != want {
				t.Errorf("the follower saw %+v, want %+v", got, want)
			}
			if _, err := s1.Multi(ctx, first.Guard()); err != nil {
				t.Errorf("guard in the term: %v", err)
			}
			must(t, a.Resign(ctx))
			if cause := recv(ctx, t, a.ended); !errors.Is(cause, ErrResigned) {
				t.Errorf("cause of the term's end: got %v, want ErrResigned", cause)
			}
			second := recv(ctx, t, b.terms)
			if second.ID <= first.ID {
				t.Errorf("terms: got %d after %d, want them to grow", second.ID, first.ID)
			}
			if _, err := s1.Multi(ctx, first.Guard()); err == nil {
				t.Error("the guard of a past term holds")
			}
			must(t, b.stop())
			must(t, b.Resign(ctx)) // what Run left standing
			must(t, a.stop())
			must(t, a.Resign(ctx))
			names, _, err := s1.Children(ctx, path)
			must(t, err)
			if len(names) != 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

func TestReal_RunAgainKeepsThePlace(t *testing.T) {
	ctx, path := testContext(t), zktest.Root(t)+"/election"
	s := dialReal(t)
	r := run(t, s, Config{Name: "e", Path: path, ID: "a", Keep: true})
	first := recv(ctx, t, r.terms)
	must(t, r.stop())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, s, nil) }()
	if second := recv(ctx, t, r.terms); second.ID != first.ID {
		t.Errorf("term after Run was called again: got %d, want %d", second.ID, first.ID)
	}
	must(t, r.Resign(ctx))
	_ = s.Close()
	<-done
}
