package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

// TestRollout_LeaderAndQuorumAreLostInTheMiddle: ZooKeeper's leader dies while
// a host has its turn, then the quorum goes for a while; the host finishes when
// nobody can be told. With the quorum back the rollout goes on to its end.
func TestRollout_LeaderAndQuorumAreLostInTheMiddle(t *testing.T) {
	ensemble := zktest.StartEnsemble(t, 3)
	s := startSites(t, ensemble.ConnectString(), 5)
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
	for _, id := range s.hosts() {
		eventually(t, id+" to notice that the quorum is gone", func() bool {
			out, _ := s.agents[id].run(t, "status", "-o", "json")
			return strings.Contains(out, `"suspended"`) || strings.Contains(out, `"connecting"`)
		})
	}
	close(s.gate)
	outage := time.NewTimer(3 * time.Second)
	<-outage.C
	for _, id := range s.hosts() {
		if id != slowHost && s.uses(id) != "one" {
			t.Errorf("%s uses %s without a quorum", id, s.uses(id))
		}
	}
	ensemble.Restart(t, first)
	ensemble.Restart(t, second)
	ensemble.AwaitServing(t)
	if out, code := command(t, nil, "rollout", "watch", site, "--zk", s.zk); code != 0 {
		t.Fatalf("watch: exit %d:\n%s", code, out)
	}
	s.allUse(t, "slow")
	s.atMost(t, name, "slow", 1)
}
