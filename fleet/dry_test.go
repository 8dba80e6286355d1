package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Plan implements Planner.
func (h *simpleHost) Plan(ctx context.Context, tree *view.Tree, diff bool) ([]FileChange, error) {
	if err := h.Vote(ctx, tree); err != nil {
		return nil, err
	}
	f := FileChange{Path: "/etc/site", Digest: "d", Added: 1, Removed: 2}
	if diff {
		f.Diff = "+ " + h.id
	}
	return slices.Repeat([]FileChange{f}, 1+h.more), nil
}

func (w *world) dry(version int64) string {
	w.t.Helper()
	w.version(version)
	name, err := Propose(w.t.Context(), w.desk, Request{Root: root, Version: version, Digest: digest, Dry: true, Who: "ann"})
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// silent subscribes a host that never answers.
func (w *world) silent(id string) {
	w.t.Helper()
	path := SubscriptionPath(root, id)
	if err := w.desk.CreateParents(w.t.Context(), path); err != nil {
		w.t.Fatal(err)
	}
	if _, _, err := w.desk.Create(w.t.Context(), path, nil, session.Ephemeral); err != nil {
		w.t.Fatal(err)
	}
}

// leftOf are the znodes of rollouts and versions that are left.
func (w *world) leftOf() []string {
	w.t.Helper()
	rollouts, _, err := w.desk.Children(w.t.Context(), trees.RolloutsPath(root))
	if err != nil {
		w.t.Fatal(err)
	}
	versions, _, err := w.desk.Children(w.t.Context(), trees.VersionsPath(root))
	if err != nil {
		w.t.Fatal(err)
	}
	left := slices.DeleteFunc(append(rollouts, versions...), func(name string) bool { return name == "shards" })
	slices.Sort(left)
	return left
}

// An abort ends no dry run: everybody answers, also while the tree is frozen, and
// no host uses the version. The rollout later has the result that the dry run announced.
func TestDry_EverybodyAnswers(t *testing.T) {
	inBubble(t, 30, func(t *testing.T, w *world) {
		w.hosts["web-03"].refuse[2] = "no such word"
		if err := Freeze(t.Context(), w.desk, root, "ann", "sales day"); err != nil {
			t.Fatal(err)
		}
		name := w.dry(2)
		state := w.awaitPhase(name, PhasePlanned)
		commits, diffs := 0, 0
		for id, r := range state.Hosts {
			switch {
			case id == "web-03" && (r.State != HostAbort || r.Error != "no such word"):
				t.Errorf("%s: %+v", id, r)
			case id == "web-03":
			case r.State != HostCommit || len(r.Files) != 1 || r.Files[0].Added != 1:
				t.Errorf("%s: %+v", id, r)
			default:
				commits++
			}
			for _, f := range r.Files {
				diffs += min(len(f.Diff), 1)
			}
		}
		if commits != 29 || diffs == 0 || diffs == 29 {
			t.Errorf("%d commits, %d diffs", commits, diffs)
		}
		if names, err := Names(t.Context(), w.desk, root); err != nil || len(names) > 0 {
			t.Errorf("the rollouts are %v, error %v", names, err)
		}
		if err := EndDry(t.Context(), w.desk, root, name, "ann"); err != nil {
			t.Fatal(err)
		}
		if left := w.leftOf(); !slices.Equal(left, []string{"0000000001"}) {
			t.Errorf("left are %v", left)
		}
		if _, err := Unfreeze(t.Context(), w.desk, root, "bob"); err != nil {
			t.Fatal(err)
		}
		state = w.awaitPhase(w.propose(2, Strategy{}), PhaseAborted)
		if state.Name != rolloutName(0) || !strings.Contains(state.Reason(), "web-03: no such word") {
			t.Errorf("%s: %s", state.Name, state.Reason())
		}
		for id, h := range w.hosts {
			if got := h.versions(); !slices.Equal(got, []int64{1}) {
				t.Errorf("%s used %v", id, got)
			}
		}
	})
}

// A candidate that comes while a dry run is deleted does not keep it.
func TestDry_CandidateComesWhileItIsDeleted(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		name := w.dry(2)
		w.awaitPhase(name, PhasePlanned)
		came := false
		w.server.Hold(func(h memzk.Held) <-chan struct{} {
			if !came && h.Op == jute.OpMulti && bytes.Contains(h.Body, []byte(name+"/progress")) {
				came = true
				if err := w.server.Create(coordinatorPath(root, name)+"/late", nil); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		if err := EndDry(t.Context(), w.desk, root, name, "ann"); err != nil {
			t.Fatal(err)
		}
		w.server.Hold(nil)
		if left := w.leftOf(); !came || !slices.Equal(left, []string{"0000000001"}) {
			t.Errorf("it came: %v, left are %v", came, left)
		}
	})
}

// A candidate that comes behind the deletion makes the path of the rollout again. The
// next coordinator deletes that, and what else it is to delete.
func TestCollect_WhatALateCandidateLeaves(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		late := []string{dryName(7), dryName(8), rolloutName(0)}
		for _, name := range late {
			if err := w.server.Create(coordinatorPath(root, name), nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range late {
			if _, err := Head(t.Context(), w.desk, root, name); !errors.Is(err, ErrNoRollout) {
				t.Errorf("%s: got %v, want ErrNoRollout", name, err)
			}
		}
		for n := range keepRollouts {
			w.awaitPhase(w.propose(int64(n+2), Strategy{Parallel: 2}), PhaseDone)
		}
		w.await("the remains to be gone", func() bool {
			return !slices.ContainsFunc(late, func(name string) bool { return w.server.Exists(rolloutPath(root, name)) })
		})
	})
}

// A host that does not answer is waited for as long as for a vote, and no longer.
func TestDry_SomebodyIsSilent(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.hosts["web-01"].stop() // its subscription is of its session
		w.await("it to be gone", func() bool {
			list, err := Subscribers(t.Context(), w.desk, root)
			return err == nil && len(list) == 2
		})
		w.silent("web-09")
		state := w.awaitPhase(w.dry(2), PhasePlanned)
		if c := state.Counts(); c.Called != 3 || c.Commit != 2 {
			t.Errorf("got %+v", c)
		}
	})
}

// A rollout ends a dry run at once. The coordinator deletes a dry run that its caller left.
func TestDry_GivesWay(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.silent("web-09")
		dry := w.dry(2)
		w.await("a vote", func() bool {
			state, err := Read(t.Context(), w.desk, root, dry)
			return err == nil && state.Counts().Commit > 0
		})
		if _, err := Propose(t.Context(), w.desk, Request{Root: root, Version: 2, Digest: digest, Dry: true}); !errors.Is(err, ErrOpen) {
			t.Errorf("a second dry run: %v", err)
		}
		name := w.propose(3, Strategy{Absent: AbsentSkip, Parallel: 3})
		if state, err := Head(t.Context(), w.desk, root, dry); err != nil || state.Gate.Result != ResultReplaced {
			t.Errorf("got %+v, %v", state, err)
		}
		w.awaitPhase(name, PhaseDone)
		w.await("the dry run to be deleted", func() bool {
			return slices.Equal(w.leftOf(), []string{"0000000001", "0000000003", name})
		}, func() string { return strings.Join(w.leftOf(), " ") })

		dry = w.dry(4)
		w.awaitPhase(dry, PhasePlanned)
		start := time.Now()
		w.await("the dry run to be deleted", func() bool { return !slices.Contains(w.leftOf(), dry) })
		if d := time.Since(start); d < dryLinger/2 {
			t.Errorf("it was deleted after %s: nobody can have read it", d)
		}
		if left := w.leftOf(); slices.Contains(left, "0000000004") {
			t.Errorf("left are %v", left)
		}
	})
}

// A publish ends a dry run at once, in its own transaction; it does not end a rollout.
func TestDry_EndedByAPublish(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.silent("web-09")
		dry := w.dry(2)
		w.await("the votes and a coordinator", func() bool {
			state, err := Read(t.Context(), w.desk, root, dry)
			return err == nil && state.Progress.Counts.Commit == 3 // as the coordinator reports them
		})
		ops, err := closeOps(t.Context(), w.desk, root, "bob", false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.desk.Multi(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		if state, err := Head(t.Context(), w.desk, root, dry); err != nil || state.Gate.Result != ResultReplaced || state.Gate.By != "bob" {
			t.Errorf("got %+v, %v", state, err)
		}
		w.await("the dry run to be deleted", func() bool { return slices.Equal(w.leftOf(), []string{"0000000001"}) })

		name := w.propose(3, Strategy{})
		if err := Pause(t.Context(), w.desk, root, name, Order{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		if _, err := closeOps(t.Context(), w.desk, root, "bob", false); !errors.Is(err, ErrOpen) {
			t.Errorf("a publish past a rollout: %v", err)
		}
		if ops, err = closeOps(t.Context(), w.desk, root, "bob", true); err != nil {
			t.Fatal(err)
		}
		if _, err := w.desk.Multi(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		state, err := Head(t.Context(), w.desk, root, name)
		if err != nil || state.Gate.Result != ResultSuperseded || state.Gate.words() != "voting paused by ann, closed by bob" {
			t.Errorf("got %s, %v", state.Gate.words(), err)
		}
	})
}

// A vote of a host with many files names some of them, and counts the rest.
func TestDry_ManyFiles(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		w.hosts["web-01"].more = 49
		state := w.awaitPhase(w.dry(2), PhasePlanned)
		if r := state.Hosts["web-01"]; len(r.Files) != 32 || r.More != 18 {
			t.Errorf("%d files and %d more", len(r.Files), r.More)
		}
	})
}

// What a host says of its files is bounded: their number, their bytes, and the bytes
// of their differences.
func TestBoundFiles(t *testing.T) {
	t.Parallel()
	files := func(n, path, diff int) []FileChange {
		var list []FileChange
		for range n {
			list = append(list, FileChange{Path: "/" + strings.Repeat("p", path), Digest: "0123456789abcdef", Added: 1, Diff: strings.Repeat("d", diff)})
		}
		return list
	}
	for _, c := range []struct{ n, path, diff, kept, more, diffs int }{
		{3, 10, 100, 3, 0, 3},
		{32, 10, 0, 32, 0, 0},
		{40, 10, 0, 32, 8, 0},
		{20, 500, 0, 7, 13, 0},
		{4, 10, 5 << 10, 4, 0, 3},
		{2, 10, 17 << 10, 2, 0, 0},
		{1, 5000, 0, 0, 1, 0},
	} {
		got, more := boundFiles(files(c.n, c.path, c.diff))
		diffs := 0
		for _, f := range got {
			diffs += min(len(f.Diff), 1)
		}
		if len(got) != c.kept || more != c.more || diffs != c.diffs {
			t.Errorf("%+v: kept %d, %d more, %d diffs", c, len(got), more, diffs)
		}
		if n := len(encode(HostRecord{State: HostCommit, Files: got, More: more})); n > 4<<10+16<<10+1<<10 {
			t.Errorf("%+v: the record has %d bytes", c, n)
		}
	}
}

// A dry run writes what its votes write: one transaction a host. It reads what a host
// must know to vote: the proposal and what it watches of it, the version, and each vote
// once. Twice the hosts cost twice the requests, so nothing is read by everybody from
// everybody.
func TestDry_Cost(t *testing.T) {
	testhelp.InTurn(t, 2)
	const few, most = 30, 16 // hosts, and requests a host
	total := map[int]int64{}
	for _, hosts := range []int{few, 2 * few} {
		inBubble(t, hosts, func(t *testing.T, w *world) {
			synctest.Wait()
			before := w.server.Requests()
			w.awaitPhase(w.dry(2), PhasePlanned)
			synctest.Wait()
			spent, n := "", int64(hosts)
			for op, count := range w.server.Requests() {
				d := int64(count - before[op])
				switch {
				case op == "ping" || d == 0:
					continue
				case op == "multi" && (d < n || d > n+3): // the votes, the proposal, the close
					t.Errorf("%d transactions for the votes of %d hosts", d, hosts)
				}
				total[hosts] += d
				spent += fmt.Sprintf(" %s %d", op, d)
			}
			t.Logf("%d hosts:%s", hosts, spent)
			if total[hosts] > most*n {
				t.Errorf("%d requests for a dry run over %d hosts:%s", total[hosts], hosts, spent)
			}
		})
	}
	if total[2*few] > 2*total[few]+few {
		t.Errorf("%d requests for %d hosts, and %d for %d", total[few], few, total[2*few], 2*few)
	}
}

// The version in use and the one before stay, whatever a dry run is named after.
func TestDry_KeepsVersionsInUse(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for _, value := range []string{"1", "2", "3"} {
		mustPublish(t, s, path, config.LayoutVersioned, map[string]string{"a": value})
	}
	for version, stays := range map[int64]bool{1: false, 2: true, 3: true} {
		must(t, deleteVersion(soon(t), s, path, version))
		if _, err := config.ReadVersion(soon(t), s, path, version); (err == nil) != stays {
			t.Errorf("version %d: got %v, it is to stay: %v", version, err, stays)
		}
	}
}
