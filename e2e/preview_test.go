package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var hostLine = regexp.MustCompile(`(?m)^\S+\s+h\d\s`)

// watchDir records everything that happens in a directory from now on.
func watchDir(t *testing.T, dir string) func() string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS&^(unix.IN_OPEN|unix.IN_ACCESS|unix.IN_CLOSE_NOWRITE)); err != nil {
		t.Fatal(err)
	}
	return func() string {
		buf := make([]byte, 1<<16)
		n, _ := unix.Read(fd, buf)
		return strings.Trim(strings.ReplaceAll(string(buf[:max(n, 0)]), "\x00", " "), " ")
	}
}

// Three hosts with a real nginx vote on a version that nginx refuses: the rollout is
// refused with nginx's own words, and no file of any host is touched.
func TestPreview_NginxRefusesAVersionAtTheVote(t *testing.T) {
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/shop", map[string]string{"timeouts/read": "5s"})
	one, _ := backend(t, "one")
	startAgent(t, "api-1", serviceSettings(zk, portOf(one)))
	var hosts []*agentProcess
	for i := range 3 {
		a := newAgent(t, fmt.Sprintf("h%d", i+1), webSettings(t, zk))
		template, err := os.ReadFile("../examples/nginx/upstreams.conf.tmpl")
		if err != nil {
			t.Fatal(err)
		}
		a.write(t, "upstreams.conf.tmpl", string(template))
		nginx := prepareNginx(t, a.dir)
		a.write(t, "conf.d/upstreams.conf", "upstream api { server 127.0.0.1:1; }\n")
		nginx.start(t)
		a.start(t)
		fileContains(t, a.path("conf.d/upstreams.conf"), "127.0.0.1:"+portOf(one), `proxy_read_timeout "5s"`)
		eventually(t, "the first apply to end", func() bool {
			return strings.Contains(a.log.String(), "msg=applied")
		})
		hosts = append(hosts, a)
	}
	eventually(t, "three subscribers", func() bool {
		out, _ := command(t, nil, "fleet", "/config/shop", "--zk", zk)
		return len(hostLine.FindAllString(out, -1)) == 3 && !strings.Contains(out, "behind")
	})
	var events []func() string
	for _, a := range hosts {
		events = append(events, watchDir(t, a.path("conf.d")))
	}
	bad := t.TempDir()
	if err := os.Mkdir(filepath.Join(bad, "timeouts"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeKey(t, bad, "timeouts/read", "30 potatoes")

	out, code := command(t, nil, "config", "plan", bad, "/config/shop", "--fleet", "--zk", zk)
	if code == 0 || !strings.Contains(out, "3 refuse") || !strings.Contains(out, "proxy_read_timeout") {
		t.Errorf("plan --fleet: exit %d\n%s", code, out)
	}
	out, code = command(t, nil, "config", "publish", bad, "/config/shop", "--rollout", "--zk", zk, "--yes")
	if code == 0 || !strings.Contains(out, "decision abort") || !strings.Contains(out, "proxy_read_timeout") {
		t.Errorf("publish --rollout: exit %d\n%s", code, out)
	}
	for i, happened := range events {
		if e := happened(); e != "" {
			t.Errorf("h%d was touched: %s", i+1, e)
		}
	}

	writeKey(t, bad, "timeouts/read", "6s")
	must(t, append([]string{"config", "publish", bad, "/config/shop", "--zk", zk, "--yes"}, slowly()...)...)
	for _, a := range hosts {
		fileContains(t, a.path("conf.d/upstreams.conf"), `proxy_read_timeout "6s"`)
	}
}
