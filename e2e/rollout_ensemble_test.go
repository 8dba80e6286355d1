package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
)

// TestRollout_AMinuteWithoutAQuorum: ZooKeeper's leader dies while a host has
// its turn, then the quorum is lost for a minute. The host finishes meanwhile and
// cannot report it. Nothing else changes until the quorum is back. Then the rollout
// goes on to its end. The minute is used for a fleet elsewhere, of which
// somebody is killed at every step of a rollout.
func TestRollout_AMinuteWithoutAQuorum(t *testing.T) { //nolint:tparallel // its subtests build on each other
	testhelp.OnlyAll(t, "an ensemble, and a minute without its quorum")
	t.Parallel()
	ensemble := zktest.StartEnsemble(t, 3)
	s := startSites(t, ensemble.ConnectString(), 5)
	r := s.startReader(t)
	members := r.membersOf(t, s)
	out, code, name := s.rollOut(t, "slow", "--parallel", "1", "--canary", slowHost, "--detach")
	if code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	eventually(t, slowHost+" to reload", func() bool { return len(s.log.of("slow")) > 0 })

	first := ensemble.Leader(t)
	first.Kill(t)
	second := ensemble.Leader(t) // another one
	eventually(t, "the rollout to be seen by the new leader", func() bool {
		out, code := command(t, nil, "rollout", "status", site, "--zk", s.zk)
		return code == 0 && strings.Contains(out, "rolling")
	})
	second.Kill(t)
	minute := time.NewTimer(time.Minute)
	s.allCutOff(t)
	s.gate.open()
	eventually(t, slowHost+" to finish", func() bool {
		events := s.log.of("slow")
		return events[len(events)-1].what == "end"
	})
	killedAtEveryStep(t)
	<-minute.C

	s.nothingHasChanged(t)
	if got, err := os.ReadFile(r.path("members")); err != nil || string(got) != members {
		t.Errorf("the members that are rendered were %q and are %q (%v)", members, got, err)
	}
	ensemble.Restart(t, first)
	ensemble.Restart(t, second)
	ensemble.AwaitServing(t)
	if out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk); code != 0 {
		t.Fatalf("watch: exit %d:\n%s", code, out)
	}
	s.allUse(t, "slow")
	s.atMost(t, name, "slow", 1)
	s.allFine(t)
	r.membersOf(t, s)
}

// reader is an agent that renders who is a member, and follows no config.
type reader struct{ *agentProcess }

func (s *sites) startReader(t *testing.T) reader {
	t.Helper()
	return reader{startAgent(t, "reader", `
zookeeper {
  servers         = `+quoted(strings.Split(s.zk, ","))+`
  session_timeout = "15s"
}
group "web" { path = "/services/web" }
template "members" {
  destination = "DIR/members"
  contents    = "{{ range members \"web\" }}{{ .Port }} {{ end }}"
}
`)}
}

// membersOf waits until all of the fleet are members, and returns them.
func (r reader) membersOf(t *testing.T, s *sites) string {
	t.Helper()
	return fileHolds(t, r.path("members"), "all members", func(text string) bool {
		return len(strings.Fields(text)) == len(s.agents)
	})
}

// allCutOff waits until each agent says that ZooKeeper is away.
func (s *sites) allCutOff(t *testing.T) {
	t.Helper()
	for _, id := range s.hosts() {
		s.agents[id].await(t, id+" to notice that the quorum is gone", cutOff)
	}
}

func cutOff(s *show.Status) bool {
	unreachable := func(c show.Condition) bool { return c.Code == "zookeeper-unreachable" }
	return s.ZooKeeper.State != "connected" && slices.ContainsFunc(s.Conditions, unreachable)
}

// nothingHasChanged checks what is in use, and what is told, in the middle of
// a rollout that stands still because the quorum is lost.
func (s *sites) nothingHasChanged(t *testing.T) {
	t.Helper()
	for _, id := range s.hosts() {
		want := "one"
		if id == slowHost {
			want = "slow"
		}
		if got := s.uses(id); got != want {
			t.Errorf("%s uses %q without a quorum, want %q", id, got, want)
		}
		status := s.agents[id].await(t, id+" to answer", func(*show.Status) bool { return true })
		if !cutOff(status) || len(status.Templates) != 1 || status.Templates[0].State == "failed" {
			t.Errorf("%s says: %s, %+v, conditions %+v, templates %+v", id, status.Summary, status.ZooKeeper, status.Conditions, status.Templates)
		}
		if out, code := s.agents[id].run(t, "status", "--check"); code != 1 || !strings.Contains(out, "zookeeper") {
			t.Errorf("status --check on %s: exit %d, want the 1 of a warning:\n%s", id, code, out)
		}
	}
	if hosts := s.log.hosts("slow"); !slices.Equal(hosts, []string{slowHost}) {
		t.Errorf("%v reloaded, want %s alone", hosts, slowHost)
	}
	for _, args := range [][]string{{"rollout", "status", site}, {"rollout", "undo", site}, {"rollout", "abort", site}} {
		if out, code := command(t, nil, append(args, "--zk", s.zk, "--timeout", "2s")...); code != 69 {
			t.Errorf("%v without a quorum: exit %d, want 69:\n%s", args, code, out)
		}
	}
}

// allFine waits until no agent has anything to complain about.
func (s *sites) allFine(t *testing.T) {
	t.Helper()
	for _, id := range s.hosts() {
		s.agents[id].await(t, id+" to be fine", func(s *show.Status) bool {
			return s.ZooKeeper.State == "connected" && len(s.Conditions) == 0 &&
				!slices.ContainsFunc(s.Services, func(x registry.ServiceStatus) bool { return !x.Registered })
		})
	}
}
