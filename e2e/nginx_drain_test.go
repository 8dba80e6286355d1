package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// drainedServices registers one member for each port, without checks: they stay up
// until somebody takes them out.
func drainedServices(zk string, ports map[string]string) string {
	text := fmt.Sprintf("zookeeper {\n  servers         = [%q]\n  session_timeout = \"4s\"\n}\n", zk)
	for name, port := range ports {
		text += fmt.Sprintf("service %q {\n  group     = \"/services/api\"\n  member_id = %[1]q\n  address   = \"127.0.0.1\"\n  port      = %s\n  drain     = \"1s\"\n}\n", name, port)
	}
	return text
}

// Members drain, go into maintenance, leave, and vanish with their agent behind
// a real nginx under load. No request fails, and a member that is out gets none.
func TestNginx_DrainUnderLoad(t *testing.T) {
	testhelp.OnlyAll(t, "it is under load for long")
	t.Parallel()
	zk := zookeeper(t)
	ports := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d"} {
		s, _ := backend(t, name)
		ports[name] = portOf(s)
	}
	publish(t, zk, "/config/shop", map[string]string{"timeouts/connect": "60s", "timeouts/read": "60s"})
	last := map[string]string{"d": ports["d"]}
	leaving := startAgent(t, "leaving", drainedServices(zk, last))
	rest := map[string]string{"a": ports["a"], "b": ports["b"], "c": ports["c"]}
	hosts := startAgent(t, "hosts", drainedServices(zk, rest))
	web, nginx := startWeb(t, zk)
	nginx.start(t)
	web.start(t)
	onlyFrom(t, nginx, "a", "b", "c", "d")
	load := startLoad(t, "http://127.0.0.1:"+nginx.port+"/", false)

	maint := func(args ...string) {
		t.Helper()
		if out, code := hosts.run(t, append([]string{"maint"}, args...)...); code != 0 {
			t.Fatalf("maint %v: exit %d\n%s", args, code, out)
		}
	}
	maint("on", "--service", "b", "--reason", "test", "--drain=1h")
	onlyFrom(t, nginx, "a", "c", "d") // b drains.
	maint("off", "--service", "b")
	onlyFrom(t, nginx, "a", "b", "c", "d")
	maint("on", "--service", "c", "--reason", "test", "--drain=1s") // then it is removed.
	onlyFrom(t, nginx, "a", "b", "d")
	maint("off", "--service", "c")
	onlyFrom(t, nginx, "a", "b", "c", "d")

	// An agent that leaves shows its member as draining, then removes it.
	leaving.signal(t, syscall.SIGINT)
	<-leaving.exited
	onlyFrom(t, nginx, "a", "b", "c")
	leaving.start(t)
	onlyFrom(t, nginx, "a", "b", "c", "d")

	// Three of four members vanish with their agent: the guard holds them, and
	// nginx goes on asking them.
	hosts.kill()
	eventually(t, "three members to be held", func() bool {
		out, _ := web.run(t, "members", "api", "--here", "-o", "json")
		return strings.Count(out, `"status": "held"`) == 3
	})
	onlyFrom(t, nginx, "a", "b", "c", "d")
	hosts.start(t)
	eventually(t, "nobody to be held", func() bool {
		out, _ := web.run(t, "members", "api", "--here", "--state", "up", "-o", "json")
		return strings.Count(out, `"status": "up"`) == 4
	})
	onlyFrom(t, nginx, "a", "b", "c", "d")

	asked, lost := load.end()
	t.Logf("%d requests, %d lost", asked, len(lost))
	if asked == 0 || len(lost) > 0 {
		t.Errorf("got %d requests, lost %v", asked, lost)
	}
}
