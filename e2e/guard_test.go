package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// guardedSession leaves three seconds, between the end of a lease and the end of
// its session, for a busy machine to end a command.
const guardedSession = "9s"

// working is a candidate whose hook works for as long as the term lasts and
// writes what it does, with its fence and the time, to a log of all agents.
func working(servers []string, log, id string) string {
	script := fmt.Sprintf(`while :; do echo %s $ZKAGENT_FENCE $(date +%%s%%N) >> %s; sleep 0.1; done`, id, log)
	return fmt.Sprintf(`
zookeeper {
  servers         = %s
  session_timeout = %q
}
election "work" { path = "/election" }
hook "work" {
  leader     = election.work
  on_elected = true
  command    = ["sh", "-c", %q]
  timeout    = "1h"
}
`, quoted(servers), guardedSession, script)
}

// span is when hooks of one term were seen at work.
type span struct {
	agent       string
	fence       int64
	first, last int64 // nanoseconds
	lines       int
}

// spans reads the log of the hooks, in the order of the fences.
func spans(log string) []span {
	data, _ := os.ReadFile(log)
	terms := map[int64]span{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) != 3 || !strings.HasSuffix(line, "\n") {
			continue
		}
		fence, _ := strconv.ParseInt(f[1], 10, 64)
		at, _ := strconv.ParseInt(f[2], 10, 64)
		s, ok := terms[fence]
		if !ok {
			s = span{agent: f[0], fence: fence, first: at, last: at}
		}
		s.first, s.last, s.lines = min(s.first, at), max(s.last, at), s.lines+1
		terms[fence] = s
	}
	return slices.SortedFunc(maps.Values(terms), func(a, b span) int { return cmp.Compare(a.fence, b.fence) })
}

// newest waits until a hook works under a fence above the given one.
func newest(t *testing.T, log string, above int64) span {
	t.Helper()
	var s span
	eventually(t, "a hook of the next term", func() bool {
		all := spans(log)
		if len(all) == 0 {
			return false
		}
		s = all[len(all)-1]
		return s.fence > above && s.lines > 2
	})
	return s
}

// apart checks that no two terms' hooks worked at the same time, and that the
// later one had the larger fence.
func apart(t *testing.T, log string) {
	t.Helper()
	all := spans(log)
	for i := 1; i < len(all); i++ {
		if all[i].first <= all[i-1].last {
			t.Errorf("the hook with fence %d of %s still worked %d ms after the one with fence %d of %s had begun", all[i-1].fence,
				all[i-1].agent, (all[i-1].last-all[i].first)/1e6, all[i].fence, all[i].agent)
		}
	}
}

// side is one of the two hosts, with its network.
type side struct {
	*agentProcess
	proxy *zktest.Proxy
	cable cable
}

// TestLeaderFaults_HooksNeverOverlap disturbs the leader in every way that a
// host or network can, and looks at the hooks' own log.
func TestLeaderFaults_HooksNeverOverlap(t *testing.T) {
	testhelp.OnlyAll(t, "six kinds of faults, each as long as a session")
	t.Parallel()
	both := []zktest.Direction{zktest.ClientToServer, zktest.ServerToClient}
	lost := func(d ...zktest.Direction) func(*testing.T, side) {
		return func(t *testing.T, s side) { s.cable.cut(t, d...) }
	}
	again := func(t *testing.T, s side) { s.cable.heal(t) }
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, s side)
		heal  func(t *testing.T, s side)
	}{
		{
			"stopped", func(t *testing.T, s side) { s.signal(t, syscall.SIGSTOP) },
			func(t *testing.T, s side) { s.signal(t, syscall.SIGCONT) },
		},
		{"killed", func(_ *testing.T, s side) { s.kill() }, func(t *testing.T, s side) { s.start(t) }},
		{"cut off", func(_ *testing.T, s side) { s.proxy.Cut() }, func(_ *testing.T, s side) { s.proxy.Heal() }},
		{"black hole", lost(both...), again},
		{"cut to the server", lost(zktest.ClientToServer), again},
		{"cut from the server", lost(zktest.ServerToClient), again},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "hooks.log")
			server, chroot := splitChroot(zookeeper(t))
			sides := map[string]side{}
			for _, id := range []string{"a", "b"} {
				proxy := zktest.NewProxy(t, server)
				net := newCable(t, proxy.Addr())
				a := newAgent(t, id, working([]string{net.addr + chroot}, log, id))
				a.via = net.via
				a.start(t)
				sides[id] = side{a, proxy, net}
			}
			first := newest(t, log, 0)
			c.begin(t, sides[first.agent])
			second := newest(t, log, first.fence)
			if second.agent == first.agent {
				t.Errorf("agent %s leads again while it is %s", second.agent, c.name)
			}
			c.heal(t, sides[first.agent])
			pid := sides[first.agent].cmd.Process.Pid
			sides[first.agent].await(t, "the former leader in a new session", func(s *show.Status) bool {
				return s.Agent.PID == pid && s.ZooKeeper.State == "connected" && len(s.Elections) == 1 && !s.Elections[0].Mine
			})
			if out, code := sides[second.agent].run(t, "resign", "work"); code != 0 {
				t.Fatalf("resign: exit %d\n%s", code, out)
			}
			newest(t, log, second.fence)
			apart(t, log)
		})
	}
}

// The server that the leader is connected to is killed: the leader goes on
// through another one, or another leader follows; never two.
func TestLeaderFaults_ServerKilled(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble")
	t.Parallel()
	ensemble := zktest.StartEnsemble(t, 3)
	servers := ensemble.Addrs()
	log := filepath.Join(t.TempDir(), "hooks.log")
	agents := map[string]*agentProcess{}
	for _, id := range []string{"a", "b"} {
		agents[id] = startAgent(t, id, working(servers, log, id))
	}
	first := newest(t, log, 0)
	s := agents[first.agent].await(t, "the leader's server", func(s *show.Status) bool { return s.ZooKeeper.Server != "" })
	at := slices.Index(servers, s.ZooKeeper.Server)
	if at < 0 {
		t.Fatalf("connected to %q, which is not one of %v", s.ZooKeeper.Server, servers)
	}
	ensemble.Servers[at].Kill(t)
	agents[first.agent].await(t, "another server", func(s *show.Status) bool {
		return s.ZooKeeper.State == "connected" && s.ZooKeeper.Server != servers[at]
	})
	seen := lines(log)
	eventually(t, "a leader's hook to work", func() bool { return lines(log) > seen+5 })
	apart(t, log)
}

// A killed agent leaves no command of its term behind, whatever the command
// did to get away.
func TestGuard_KilledAgentLeavesNothing(t *testing.T) {
	t.Parallel()
	zk := zookeeper(t)
	log := filepath.Join(t.TempDir(), "hooks.log")
	settings := strings.Replace(working([]string{zk}, log, "a"), "while :", "setsid sleep 1000 & (trap '' TERM HUP; sleep 1000) & while :", 1)
	a := startAgent(t, "a", settings)
	newest(t, log, 0)
	left := func() []int { return descendants(a.cmd.Process.Pid) }
	before := left()
	if len(before) < 4 { // the guard, the shell and both sleeps
		t.Fatalf("only %d processes below the agent", len(before))
	}
	a.kill()
	eventually(t, "every process of the term to end", func() bool {
		return !slices.ContainsFunc(before, alive)
	})
}

// The guard is stopped, too, and nothing can end the command in time. The fence then
// separates the two terms, and the command ends as soon as it can.
func TestGuard_WholeHostStopped(t *testing.T) {
	testhelp.OnlyAll(t, "it waits for the end of a session")
	t.Parallel()
	zk := zookeeper(t)
	log := filepath.Join(t.TempDir(), "hooks.log")
	agents := map[string]*agentProcess{}
	for _, id := range []string{"a", "b"} {
		agents[id] = startAgent(t, id, working([]string{zk}, log, id))
	}
	first := newest(t, log, 0)
	root := agents[first.agent].cmd.Process.Pid
	all := append([]int{root}, descendants(root)...)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	second := newest(t, log, first.fence)
	if second.agent == first.agent {
		t.Errorf("%s leads again while it is stopped", second.agent)
	}
	for _, pid := range slices.Backward(all) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	eventually(t, "the command of the former term to end", func() bool { return !slices.ContainsFunc(all[1:], alive) })
	if got := newest(t, log, first.fence); got.fence != second.fence {
		t.Errorf("fence %d after %d: the leader changed again", got.fence, second.fence)
	}
}

// descendants are the processes below one, nearest first.
func descendants(pid int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		if child, parent, _, ok := readStat(file); ok {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return all
}

// alive reports whether a process is there and has not ended.
func alive(pid int) bool {
	_, _, state, ok := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	return ok && state != "Z" && state != "X"
}

// readStat reads a process's id, its parent's and its state.
func readStat(file string) (pid, parent int, state string, ok bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, "", false
	}
	// The name, in brackets, may hold anything.
	head, rest, _ := strings.Cut(string(data), " (")
	if i := strings.LastIndex(rest, ") "); i >= 0 {
		rest = rest[i+2:]
	}
	f := strings.Fields(rest)
	if len(f) < 2 {
		return 0, 0, "", false
	}
	pid, _ = strconv.Atoi(head)
	parent, _ = strconv.Atoi(f[1])
	return pid, parent, f[0], true
}
