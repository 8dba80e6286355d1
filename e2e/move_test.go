package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// moveRequests is how many requests at least are made while a service moves.
const moveRequests = 2000

// The only member of a service gets another group, another port and another format by
// reloads of its agent's settings, under load. It joins before it leaves, so no request
// fails: with HAProxy on no connection, with nginx on no new one.
func TestMove_LosesNoRequest(t *testing.T) {
	testhelp.OnlyAll(t, "load balancers under load while a service moves")
	t.Parallel()
	for _, way := range []lbWay{{"nginx", false, (*lbFleet).nginxFile}, {"HAProxy", true, (*lbFleet).haproxyFile}} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			f := emptyLBFleet(t, zookeeper(t))
			f.guard = "on_empty = \"render\"\n  guard { enabled = false }\n}\ngroup \"new\" {\n  path = \"/services/new\"\n  on_empty = \"render\"\n  guard { enabled = false }"
			f.members = []int{0} // for agent, which counts them
			f.each = `concat (members "api") (members "new")`
			ports := []string{moveBackend(t), moveBackend(t)}
			settings := func(group, port, format string) string {
				return fmt.Sprintf("zookeeper { servers = [%q] }\nservice \"web\" {\n  group = %q\n  address = \"127.0.7.1\"\n  port = %s\n  format = %q\n  check \"tcp\" {\n    address = \"127.0.7.1:%s\"\n    interval = \"500ms\"\n  }\n}\n", f.zk, group, port, format, port)
			}
			head := func(a *agentProcess) string {
				return fmt.Sprintf("agent {\n  id = \"web\"\n  state_dir = \"%[1]s/state\"\n}\nadmin { socket = \"%[1]s/sock\" }\n", a.dir)
			}
			a := startAgent(t, "web", settings("/services/api", ports[0], "nerve"))
			f.registered(t, "/services/api", ports[0])
			f.via = way.start(f, t)
			f.answers(t, "the member to answer", func(who map[string]int) bool { return who[ports[0]] > 0 })
			load := startLBLoad(t, f)
			move := func(group, port, format string) {
				a.write(t, "agent.hcl", head(a)+settings(group, port, format))
				f.registered(t, group, port)
				f.answers(t, "port "+port+" to answer alone", func(who map[string]int) bool { return len(who) == 1 && who[port] > 0 })
			}
			move("/services/new", ports[0], "nerve")
			move("/services/new", ports[1], "nerve")
			move("/services/new", ports[1], "curator")
			move("/services/api", ports[0], "serverset")
			eventually(t, "enough requests", func() bool {
				load.mu.Lock()
				defer load.mu.Unlock()
				return load.asked[0] >= moveRequests && load.asked[1] >= moveRequests
			})
			got := load.end()
			t.Logf("asked %v, lost %v", got.asked, got.lost)
			if got.lost[0] > 0 || way.lossless && got.lost[1] > 0 {
				t.Errorf("lost %v of %v, from %v to %v", got.lost, got.asked, got.errors[:1], got.errors[len(got.errors)-1])
			}
		})
	}
}

// moveBackend answers with its port.
func moveBackend(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.7.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, port) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return port
}

// registered waits until one member with the port is there, and none in the other group.
func (f *lbFleet) registered(t *testing.T, group, port string) {
	t.Helper()
	eventually(t, "one member with port "+port+" in "+group, func() bool {
		var found []string
		for _, g := range []string{"/services/api", "/services/new"} {
			names, _, err := f.s.Children(t.Context(), g)
			if err != nil {
				continue
			}
			for _, n := range names {
				data, _, err := f.s.Get(t.Context(), path.Join(g, n))
				if err == nil && strings.Contains(string(data), port) {
					found = append(found, g)
				} else {
					found = append(found, "other")
				}
			}
		}
		return slices.Equal(found, []string{group})
	})
}
