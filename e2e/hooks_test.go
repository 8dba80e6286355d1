package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// badHooks are hooks that do what a command must not do; leader is a line of
// their block, or empty.
func badHooks(zk, leader string) string {
	hook := func(name, timeout, script string) string {
		return fmt.Sprintf("hook %q {\n  %s\n  schedule = \"@yearly\"\n  command  = [\"sh\", \"-c\", %q]\n  timeout  = %q\n}\n", name, leader, script, timeout)
	}
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = %q
}
election "e" { path = "/elections/e" }
`, zk, longSession) +
		hook("forks", "60s", "sleep 1000 & setsid sleep 1000 & echo parent done") +
		hook("floods", "60s", "head -c 20000000 /dev/zero | tr '\\\\0' x; echo; echo the end") +
		hook("stubborn", "5s", "trap '' TERM; echo began; while :; do sleep 0.1; done") +
		hook("missing", "60s", "exec /no/such/program")
}

// runs are the last runs of a hook.
func (a *agentProcess) runs(t *testing.T, name string) []hook.Run {
	t.Helper()
	for _, h := range a.settled(t).Hooks {
		if h.Name == name {
			return h.Runs
		}
	}
	t.Fatalf("there is no hook %s", name)
	return nil
}

func TestHooks_BadCommandsAreBounded(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	for name, leader := range map[string]string{"every host": "", "leader": "leader = election.e"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, "a", strings.ReplaceAll(badHooks(zk, leader), "/elections/e", "/elections/"+strings.ReplaceAll(name, " ", "-")))
			a.leads(t)
			for _, c := range []struct {
				hook, output, fails string
			}{
				{"forks", "parent done", ""},
				{"floods", "the end", ""},
				{"stubborn", "began", "time"},
				{"missing", "", "exit status 127"},
			} {
				out, code := a.run(t, "hooks", "run", c.hook)
				if (code == 0) != (c.fails == "") {
					t.Errorf("%s: exit %d\n%s", c.hook, code, out)
				}
				runs := a.runs(t, c.hook)
				if len(runs) != 1 {
					t.Errorf("%s: got %d runs, want 1", c.hook, len(runs))
					continue
				}
				r := runs[0]
				if !strings.Contains(r.Output, c.output) || len(r.Output) > 16<<10 || r.Took <= 0 {
					t.Errorf("%s: %d bytes of output end with %q, took %s", c.hook, len(r.Output), tail(r.Output, 200), r.Took)
				}
				if !strings.Contains(r.Error, c.fails) {
					t.Errorf("%s: got error %q, want %q in it", c.hook, r.Error, c.fails)
				}
				eventually(t, "nothing to be left of "+c.hook, func() bool { return len(descendants(a.cmd.Process.Pid)) == 0 })
			}
		})
	}
}

func TestHooks_ScheduleThatNeverFiresIsRefused(t *testing.T) {
	t.Parallel()
	settings := strings.ReplaceAll(badHooks("127.0.0.1:1", ""), "@yearly", "0 0 31 2 *")
	a := newAgent(t, "a", settings)
	out, code := a.run(t, "validate")
	if code != 78 || strings.Count(out, "never fires") != 4 {
		t.Errorf("exit %d, want 78 and all four hooks to be named\n%s", code, out)
	}
	data, err := os.ReadFile(a.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(data), "\n") {
		if at := fmt.Sprintf("agent.hcl:%d", n+1); strings.Contains(line, "schedule =") && !strings.Contains(out, at) {
			t.Errorf("%s is not named:\n%s", at, out)
		}
	}
}
