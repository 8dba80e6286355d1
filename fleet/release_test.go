package fleet

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// A rollout that is refused leaves no version behind, whatever refuses it.
func TestPublishByRollout_RefusedWritesNothing(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		cfg := PublishConfig{Path: root, Keys: map[string][]byte{"k": []byte("new")}, Force: true}
		before := znodesOf(t, w)
		for what, c := range map[string]struct {
			roll RolloutConfig
			want error
		}{
			"unknown canary": {RolloutConfig{Strategy: Strategy{Order: []string{"nohost"}}}, ErrNobody},
			"wrong share":    {RolloutConfig{Parallel: "0%"}, nil},
			"no path":        {RolloutConfig{Strategy: Strategy{Gate: "<nil>"}}, session.ErrBadPath},
			"no word":        {RolloutConfig{Strategy: Strategy{Absent: "wait"}}, nil},
		} {
			if _, err := PublishByRollout(t.Context(), w.desk, cfg, c.roll); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", what, err, c.want)
			}
		}
		name := w.propose(2, Strategy{VoteTimeout: Duration(time.Hour)})
		if _, err := Publish(t.Context(), w.desk, cfg); !errors.Is(err, ErrOpen) {
			t.Errorf("past %s: got %v", name, err)
		}
		if now := znodesOf(t, w); now != before {
			t.Errorf("%d versions instead of %d", now, before)
		}
	})
}

// znodesOf counts the versions of the tree.
func znodesOf(t *testing.T, w *world) int {
	t.Helper()
	list, err := config.History(t.Context(), w.desk, root)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A program publishes by a rollout, and takes it back.
func TestPublishByRollout(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		cfg := PublishConfig{Path: root, Keys: map[string][]byte{"k": []byte("new")}, Force: true}
		p, err := PublishByRollout(t.Context(), w.desk, cfg, RolloutConfig{Parallel: "50%"})
		if err != nil || p.Hosts != 3 {
			t.Fatalf("got %+v, %v", p, err)
		}
		if state := w.awaitPhase(p.Rollout, PhaseDone); state.Proposal.Strategy.Parallel != 1 {
			t.Errorf("got %+v", state.Proposal.Strategy)
		}
		if again, err := PublishByRollout(t.Context(), w.desk, cfg, RolloutConfig{}); err != nil || !again.Unchanged {
			t.Errorf("again: got %+v, %v", again, err)
		}
		cfg.Keys = map[string][]byte{"k": []byte("newer")}
		if p, err = PublishByRollout(t.Context(), w.desk, cfg, RolloutConfig{}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(p.Rollout, PhaseDone)
		back, err := RollbackByRollout(t.Context(), w.desk, PublishConfig{Path: root}, 0, RolloutConfig{})
		if err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(back.Rollout, PhaseDone)
	})
}

// A tree that was deleted and is published again continues above the numbers that its
// agents have seen, and above versions that were restored by their names.
func TestPublish_NumbersContinue(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for i := range 5 {
		mustPublish(t, s, path, "", map[string]string{"k": fmt.Sprint(i)})
	}
	below, err := deepest(soon(t), s, path)
	must(t, err)
	must(t, deleteAll(soon(t), s, nil, below))
	write(t, s, SubscriptionPath(path, "h1"), `{"version":700,"state":"ok"}`)
	if r := mustPublish(t, s, path, "", map[string]string{"k": "again"}); r.Version != 701 {
		t.Errorf("got version %d, h1 uses 700", r.Version)
	}
	write(t, s, trees.VersionPath(path, 703), "restored")
	if r := mustPublish(t, s, path, "", map[string]string{"k": "more"}); r.Version != 704 {
		t.Errorf("got version %d, 703 exists", r.Version)
	}
}
