package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// lines counts what the hooks of all terms have written.
func lines(log string) int {
	n := 0
	for _, s := range spans(log) {
		n += s.lines
	}
	return n
}

// TestLeaderFaults_QuorumLost takes the quorum away, while a leader's hook works,
// for longer than a session lives. The hook ends with its lease, nobody starts
// another one meanwhile, and when the quorum is back the work goes on: never two
// at a time.
func TestLeaderFaults_QuorumLost(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble, and an outage longer than a session")
	t.Parallel()
	ensemble := zktest.StartEnsemble(t, 3)
	servers := ensemble.Addrs()
	log := filepath.Join(t.TempDir(), "hooks.log")
	agents := map[string]*agentProcess{}
	for _, id := range []string{"a", "b"} {
		settings := strings.Replace(working(servers, log, id), "on_elected = true", "on_elected = true\n  idempotent = true", 1)
		agents[id] = startAgent(t, id, settings)
	}
	newest(t, log, 0)

	followers := ensemble.Followers(t)
	for _, s := range followers {
		s.Kill(t)
	}
	for id, a := range agents {
		a.await(t, id+" to have no leader's work any more", func(s *show.Status) bool {
			return s.ZooKeeper.State != "connected" && !s.Elections[0].Held && len(descendants(a.cmd.Process.Pid)) == 0
		})
	}
	before := lines(log)
	outlast := time.NewTimer(10 * time.Second) // the session timeout is 9 s
	<-outlast.C
	if now := lines(log); now != before {
		t.Errorf("hooks wrote %d lines while there was no quorum", now-before)
	}
	for _, s := range followers {
		ensemble.Restart(t, s)
	}
	ensemble.AwaitServing(t)
	eventually(t, "a leader's hook to work again", func() bool { return lines(log) > before+5 })
	apart(t, log)
}
