package agent

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestRollout_NeedsAndLeavesNoRollingHalt: a bundle has a rolling reload. A
// rollout whose reload or post_check fails leaves no halt. With a halt, a version
// that is published waits, and a rollout does not.
func TestRollout_NeedsAndLeavesNoRollingHalt(t *testing.T) {
	b, w := memBed(t)
	ctx := t.Context()
	const root = "/config/web"
	s, keys, publish := b.publisher(w, root)
	rollOut := func(v, replace, phase string) string {
		t.Helper()
		r, err := fleet.Prepare(ctx, s, keys(v))
		if err != nil {
			t.Fatal(err)
		}
		name, err := fleet.Propose(ctx, s, fleet.Request{Root: root, Version: r.Version, Digest: r.Digest, Replace: replace, Strategy: fleet.Strategy{Parallel: 1}})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" to be "+phase, func() bool {
			state, err := fleet.Read(ctx, s, root, name)
			if err != nil {
				t.Fatal(err)
			}
			return state.Phase() == phase
		})
		return name
	}

	c := b.memConfig(w)
	c.Configs = []config.Config{{Name: "web", Path: root}}
	file := b.file("out", `{{ key "web/v" }}`)
	file.Reload = &apply.ReloadConfig{Command: argv("reload"), Rolling: &apply.RollingConfig{
		Permits: "1", PostCheck: command.Command{Text: "post_check", Args: func(v command.Vars) ([]string, error) { return []string{"post_check", v.Destination}, nil }},
	}}
	c.Bundles = []apply.Config{file}
	c.Run = func(_ context.Context, cmd proc.Command) (proc.Result, error) {
		file := b.path("out")
		if cmd.Args[0] == "post_check" {
			file = cmd.Args[1]
		}
		if word := read(t, file); word == "" || word == "bad "+cmd.Args[0] {
			return proc.Result{Code: 1}, errors.New("exit status 1")
		}
		return proc.Result{}, nil
	}
	publish("one")
	a := b.start(c)
	fileIs(t, b.path("out"), "one")
	eventually(t, "the subscription", func() bool {
		list, err := fleet.Subscribers(ctx, s, root)
		return err == nil && len(list) == 1
	})

	halted := ""
	for _, what := range []string{"reload", "post_check"} {
		halted = rollOut("bad "+what, halted, fleet.PhaseHalted)
		fileIs(t, b.path("out"), "one")
		if halts, err := rolling.Halts(ctx, s); err != nil || len(halts) > 0 {
			t.Fatalf("the rollout has left a halt: %v, %v", halts, err)
		}
	}
	rollOut("two", halted, fleet.PhaseDone)
	fileIs(t, b.path("out"), "two")

	if err := rolling.Stop(ctx, s, rolling.Halt{Bundle: "out", Host: "other", Reason: "broken", Time: time.Now()}); err != nil {
		t.Fatal(err)
	}
	publish("three")
	a.condition(condition.ReloadHalted, "out", true)
	fileIs(t, b.path("out"), "two")
	rollOut("four", "", fleet.PhaseDone)
	fileIs(t, b.path("out"), "four")
	a.condition(condition.ReloadHalted, "out", false)
	// The turn is over: what is published waits again.
	publish("five")
	a.condition(condition.ReloadHalted, "out", true)
	fileIs(t, b.path("out"), "four")
}

// TestHaltOthers_BeforeThePermitGoes: a host failed in its turn and was killed before
// the others were halted. Its next process has the same session. It halts the others
// before the permit of the previous process goes.
func TestHaltOthers_BeforeThePermitGoes(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b, w := memBed(t)
	c := b.memConfig(w)
	file := b.file("out", "one")
	file.Reload = &apply.ReloadConfig{Command: argv("true"), Rolling: &apply.RollingConfig{Permits: "1"}}
	c.Bundles = []apply.Config{file}
	previous, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	leave := previous.live(t)
	if _, err := (reloadFleet{previous.hooks, previous}).Permit(t.Context(), "out", file.Reload.Rolling, nil); err != nil {
		t.Fatal(err)
	}
	leave()
	failed := map[string]apply.Halt{"out": {Reason: "no answer", Time: time.Now()}}
	if err := files.SaveJSON(filepath.Join(c.StateDir, "halts.json"), failed); err != nil {
		t.Fatal(err)
	}

	s, _, _ := b.publisher(w, "/config/web")
	a := b.start(c)
	eventually(t, "the note to go", func() bool { return len(a.engine.Halts()) == 0 })
	var leases session.Stat
	eventually(t, "the permit to go", func() bool {
		var names []string
		names, leases, err = s.Children(t.Context(), rolling.Root+"/out/leases")
		return err == nil && len(names) == 0
	})
	_, halt, err := s.Get(t.Context(), rolling.Root+"/out-halt")
	if err != nil || halt.Czxid > leases.Pzxid {
		t.Errorf("the halt came with change %#x, the permit went with change %#x, %v", halt.Czxid, leases.Pzxid, err)
	}
	halts, err := rolling.Halts(t.Context(), s)
	if err != nil || len(halts) != 1 || halts[0].Host != c.ID || halts[0].Reason != "no answer" {
		t.Errorf("got %+v, %v", halts, err)
	}
}
