package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

const publisher = "publisher"

// rolloutSteps are the writes that a rollout is made of: those of the
// publisher, of the coordinator, and of every host.
var rolloutSteps = []struct {
	name string
	request
	opened bool // when the publisher dies after it, the rollout is open
}{
	{name: "the contents are stored", request: request{by: publisher, ops: creates, has: []string{site + "/objects/"}}},
	{name: "the version is written", request: request{by: publisher, ops: creates, has: []string{site + "/versions/"}}},
	{name: "the rollout is proposed", request: request{by: publisher, ops: creates, has: []string{"/rollouts/current"}}, opened: true},

	{name: "a host votes", request: request{not: publisher, ops: creates, has: []string{`"state":"commit"`}}},
	{name: "a host wants to coordinate", request: request{not: publisher, ops: creates[:2], has: []string{candidates}}},
	{name: "the coordinator reads the clock", request: request{not: publisher, ops: sets[:1], has: []string{candidates}}},
	{name: "the coordinator opens the gate", request: request{not: publisher, ops: sets, has: []string{candidates, `"state":"open"`}}},
	{name: "the coordinator grants a turn", request: request{not: publisher, ops: sets, has: []string{candidates, `"state":"granted"`}}},
	{name: "a host starts", request: request{not: publisher, ops: sets, has: []string{`"state":"started"`}}},
	{name: "a host finishes", request: request{not: publisher, ops: sets, has: []string{`"state":"done"`}}},
	{name: "the coordinator lets all start", request: request{not: publisher, ops: sets, has: []string{candidates, `"wave":"all"`}}},
	{name: "the coordinator closes the rollout", request: request{not: publisher, ops: sets, has: []string{candidates, `"state":"closed"`}}},
	{name: "a candidate resigns", request: request{not: publisher, ops: []int32{jute.OpDelete}, has: []string{candidates}}},
}

// candidates is in every request that names a candidate of a rollout.
const candidates = "/coordinator/"

// killedAtEveryStep rolls out one version for each step, and kills the process that makes
// the step: once before its request reaches ZooKeeper, and once before the answer reaches
// the process. Then it starts the process again. It takes other steps every day.
func killedAtEveryStep(t *testing.T) {
	t.Helper()
	zk := ownZooKeeper(t).Addr()
	r := &reaper{zk: zk}
	s := startSitesVia(t, zk, 3, r)
	first, stride := testhelp.Steps()
	for _, before := range []bool{true, false} {
		for i := first - 1; i < len(rolloutSteps); i += stride {
			step := rolloutSteps[i]
			at := step.request
			at.before = before
			name := fmt.Sprintf("killed after it: %s", step.name)
			if before {
				name = fmt.Sprintf("killed before it: %s", step.name)
			}
			word := fmt.Sprintf("step-%d-%v", i, before)
			if !t.Run(name, func(t *testing.T) { s.killedAt(t, r, at, word, step.opened && !before) }) {
				return // what follows builds on it
			}
		}
	}
}

// killedAt is one rollout of three hosts, one at a time, one of them the canary.
func (s *sites) killedAt(t *testing.T, r *reaper, at request, word string, opened bool) {
	t.Helper()
	killed := r.arm(at)
	args := s.publishArgs(t, word, slowly("--parallel", "1", "--canary", "1", "--detach")...)
	code := s.publishVia(t, r, args)
	var victim string
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case victim = <-killed:
	case <-timer.C:
		t.Fatalf("no process has made this step; the publisher's exit code is %d", code)
	}
	switch {
	case victim != publisher:
		if code != 0 {
			t.Fatalf("the publisher's exit code is %d", code)
		}
		s.agents[victim].start(t)
	case !opened:
		if events := s.log.of(word); len(events) > 0 {
			t.Errorf("hosts changed without a rollout: %v", events)
		}
		if out, code := command(t, nil, args...); code != 0 {
			t.Fatalf("publish again: exit %d:\n%s", code, out)
		}
	}
	if out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk); code != 0 {
		t.Fatalf("%s was killed; watch: exit %d:\n%s", victim, code, out)
	}
	s.allUse(t, word)
	s.servicesAtMost(t, word, 1)
}

// publishVia runs a publisher that the reaper may kill, and returns its exit code:
// -1 when it was killed.
func (s *sites) publishVia(t *testing.T, r *reaper, args []string) int {
	t.Helper()
	started := make(chan struct{})
	var cmd *exec.Cmd
	addr := r.line(t, publisher, func() {
		<-started
		_ = cmd.Process.Kill()
	})
	args = slices.Clone(args)
	args[slices.Index(args, "--zk")+1] = addr
	cmd = exec.CommandContext(t.Context(), binary, args...)
	err := cmd.Start()
	close(started)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}
