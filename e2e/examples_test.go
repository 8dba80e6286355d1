package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// devProcess is one `zkagent dev`.
type devProcess struct {
	out    *syncBuffer
	cmd    *exec.Cmd
	exited chan struct{}
}

// startDev starts `zkagent dev` on a free port; it ends with the test.
func startDev(t *testing.T, env []string, args ...string) *devProcess {
	t.Helper()
	return startTalking(t, binary, env, append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
}

// startTalking starts a program whose output is what the test looks at.
func startTalking(t *testing.T, name string, env []string, args ...string) *devProcess {
	t.Helper()
	d := &devProcess{out: &syncBuffer{}, exited: make(chan struct{})}
	d.cmd = exec.Command(name, args...)
	d.cmd.Env = append(os.Environ(), append([]string{"NO_COLOR=1"}, env...)...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.exited)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		<-d.exited
		if t.Failed() {
			t.Logf("%s:\n%s", name, tail(d.out.String(), 8000))
		}
	})
	return d
}

// says waits until the output holds the text.
func (d *devProcess) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, "dev to say "+text, func() bool {
		select {
		case <-d.exited:
			if !strings.Contains(d.out.String(), text) {
				t.Fatalf("dev has ended without %q", text)
			}
		default:
		}
		return strings.Contains(d.out.String(), text)
	})
}

// match waits for a line with the expression, and returns its first group.
func (d *devProcess) match(t *testing.T, expr string) string {
	t.Helper()
	line := regexp.MustCompile("(?m)" + expr + ".*\n")
	var m []string
	eventually(t, "dev to say "+expr, func() bool {
		m = line.FindStringSubmatch(d.out.String())
		return m != nil
	})
	return m[1]
}

// ends waits for the end and returns the exit code.
func (d *devProcess) ends(t *testing.T) int {
	t.Helper()
	eventually(t, "dev to end", func() bool {
		select {
		case <-d.exited:
			return true
		default:
			return false
		}
	})
	return d.cmd.ProcessState.ExitCode()
}

// A client that resets its connection while the server writes ends no dev. The end of
// who reads its output does.
func TestDev_OutlivesItsClients(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(binary, "dev", "--listen", "127.0.0.1:0", "../examples/nginx")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(r)
	addr := ""
	for found := regexp.MustCompile(`127\.0\.0\.1:\d+`); addr == ""; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("dev has ended: %v", err)
		}
		addr = found.FindString(line)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	// The request for a session, and pings, whose answers meet a connection that is gone.
	connect := "\x00\x00\x00\x2d" + strings.Repeat("\x00", 12) + "\x00\x00\x27\x10" + strings.Repeat("\x00", 11) + "\x10" + strings.Repeat("\x00", 17)
	ping := "\x00\x00\x00\x08\xff\xff\xff\xfe\x00\x00\x00\x0b"
	for range 100 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatalf("dev has ended: %v", err)
		}
		_, _ = io.WriteString(conn, connect+strings.Repeat(ping, 2000))
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	if out, code := command(t, nil, "zk", "ls", "/", "--zk", addr); code != 0 {
		t.Fatalf("dev does not answer: %s", out)
	}
	select {
	case err := <-ended:
		t.Fatalf("dev has ended: %v", err)
	default:
	}
	_ = r.Close()
	// dev may end before this command has its last answer.
	_, _ = command(t, nil, "zk", "create", "/services/api/new", `{"host":"127.0.0.9","port":1}`, "--parents", "--yes", "--zk", addr)
	patience, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select { // when it says that a member joined
	case <-ended:
	case <-patience.Done():
		t.Error("dev does not end without a reader")
	}
}

func TestDev_TellsTheStoryWithoutAnyFile(t *testing.T) {
	testhelp.OnlyAll(t, "minutes of a story, and TestDemo_ServesThroughNginxAndEnds tells another")
	t.Parallel()
	tmp := t.TempDir()
	d := startDev(t, []string{"TMPDIR=" + tmp}, "--exit-after", "1s")
	if code := d.ends(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		"Not for production", "service web: registered", `+proxy_read_timeout "5s";`, "hook purge ran (elected): done", "fencing token:",
		"web-1 joined", `-proxy_read_timeout "5s";`, `+proxy_read_timeout "15s";`, "web-1 left",
		"zookeeper: suspended", "That was all",
	} {
		if !strings.Contains(d.out.String(), want) {
			t.Errorf("%q is not in the story", want)
		}
	}
	if strings.Contains(d.out.String(), "no effect within") {
		t.Error("a step had no effect")
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("%s is left behind", left[0].Name())
	}
}

func TestDev_ServesCommandsAndRendersEditedTemplates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, nil, "--stand-in", "--members", "web=2", dir)
	d.says(t, "# web-2\n")
	zk, sock := d.match(t, `zookeeper +(\S+)`), d.match(t, `--addr (\S+)`)
	if out := must(t, "status", "--addr", sock); !strings.Contains(out, "connected") {
		t.Errorf("status says %s", out)
	}
	if out := must(t, "members", "/services/web", "--zk", zk); !strings.Contains(out, "web-2") {
		t.Errorf("members says %s", out)
	}
	d.says(t, "would run (elected): sh -c")

	must(t, "config", "publish", filepath.Join(dir, "change/config/shop"), "/config/shop", "--zk", zk, "--yes")
	d.says(t, `+proxy_read_timeout "15s";`)

	edited := filepath.Join(dir, "upstreams.conf.tmpl")
	if err := os.WriteFile(edited+".new", []byte("edited {{ key \"shop/banner\" }}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(edited+".new", edited); err != nil {
		t.Fatal(err)
	}
	d.says(t, "+edited Sale today")

	_, port, _ := strings.Cut(zk, ":")
	out, code := command(t, nil, "dev", "--listen", zk, dir)
	if code != 1 || !strings.Contains(out, "port "+port) || !strings.Contains(out, "--listen") {
		t.Errorf("a second dev on the same port: exit %d\n%s", code, out)
	}
	_ = d.cmd.Process.Signal(syscall.SIGINT)
	if code := d.ends(t); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

func TestDev_GoesThroughChurnAndOutages(t *testing.T) {
	testhelp.OnlyAll(t, "it waits for outages")
	t.Parallel()
	d := startDev(t, nil, "--stand-in", "--members", "web=3", "--churn", "2s", "../examples/quickstart")
	d.says(t, "+  server") // a member has joined
	d.says(t, "web-5 joined")
	d.says(t, "web-1 left")
	d = startDev(t, nil, "--stand-in", "--outage", "2s/5s", "../examples/quickstart")
	d.says(t, "the server is down")
	d.says(t, "zookeeper: suspended")
	d.says(t, "zookeeper: connected")
}

func TestDev_RefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--members", "web"},
		{"--members", "web=x"},
		{"--outage", "5m/30s"},
		{"--outage", "1s"},
		{"--hooks", "maybe"},
		{"--listen", "2181"},
		{"--churn", "-1s"},
		{"--zk-version", "3.3"},
		{"--zk-version", "newest"},
		{"-o", "json"},
	} {
		if out, code := command(t, nil, append([]string{"dev"}, args...)...); code != 2 {
			t.Errorf("dev %s: exit %d\n%s", strings.Join(args, " "), code, out)
		}
	}
	if out, code := command(t, nil, "dev", "--listen", "127.0.0.1:0", filepath.Join(t.TempDir(), "none")); code != 78 {
		t.Errorf("dev without settings: exit %d\n%s", code, out)
	}
}

// zkagent dev changes nothing on the host: it leaves the file that the settings name, and
// does not run the reload.
func TestDev_WritesBelowItsOwnDirectory(t *testing.T) {
	t.Parallel()
	dir, settings := t.TempDir(), t.TempDir()
	text := `
zookeeper { servers = ["127.0.0.1:2181"] }
group "api" { path = "/services/api" }
template "servers" {
  contents    = "{{ range members \"api\" }}{{ .ID }}\n{{ end }}"
  destination = "${env("DIR")}/servers"
  reload { command = ["touch", "${env("DIR")}/reloaded"] }
}
`
	if err := os.WriteFile(filepath.Join(settings, "zkagent.hcl"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, []string{"DIR=" + dir}, "--members", "api=2", settings)
	d.says(t, "api-2\n")
	d.says(t, "would run (reload): ")
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("%v was written", left)
	}
}

// What the README's first command does, but for the build.
func TestDemo_ServesThroughNginxAndEnds(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	d := startTalking(t, "../scripts/demo", []string{"ZKAGENT=" + binary, "DEMO_SECONDS=5", "DEMO_PORT=" + port})
	n := &nginxProcess{port: port}
	eventually(t, "an answer through nginx", func() bool {
		body, err := n.get()
		return err == nil && strings.HasPrefix(body, "web")
	})
	if code := d.ends(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(d.out.String(), "That was all") {
		t.Error("the story did not reach its end")
	}
	if body, err := n.get(); err == nil {
		t.Errorf("nginx still answers: %q", body)
	}
}

func TestExample_Nginx(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openDirs(t, dir)
	n := prepareNginx(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "conf.d/upstreams.conf"), []byte("upstream api { server 127.0.0.1:1; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	startDev(t, []string{"DIR=" + dir}, "--in-place", "--hooks", "run", "--members", "api=2", "../examples/nginx")
	onlyFrom(t, n, "api-1\n", "api-2\n")
}

// openDirs lets nginx's workers, which are another user, reach a directory
// below that of the test.
func openDirs(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExample_HAProxyIsNeverReloaded(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Fatalf("haproxy is not installed: %v; run scripts/setup-tests", err)
	}
	dir, err := os.MkdirTemp("", "zkh-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	front := &nginxProcess{dir: dir, port: freePort(t)}
	proxy := startTalking(t, "haproxy", []string{"DIR=" + dir, "PORT=" + front.port}, "-db", "-f", "../examples/haproxy/haproxy.cfg")
	eventually(t, "haproxy to answer", func() bool {
		_, err := front.get()
		return err == nil || strings.Contains(err.Error(), "status")
	})
	zk := zktest.Shared(t).Addr() // The example has no chroot.
	one, _ := backend(t, "one")
	two, _ := backend(t, "two")
	startAgent(t, "one", haproxyService(zk, "one", portOf(one)))
	second := startAgent(t, "two", haproxyService(zk, "two", portOf(two)))
	lb := startTalking(t, binary, []string{"DIR=" + dir, "ZK=" + zk, "ZKAGENT=" + binary}, "run", "--config", "../examples/haproxy")
	onlyFrom(t, front, "one", "two")
	// The servers themselves go on: no request has a reason to be lost, on new
	// connections or on kept ones.
	url := "http://127.0.0.1:" + front.port + "/"
	loads := []*load{startLoad(t, url, false), startLoad(t, url, true)}
	second.signal(t, syscall.SIGINT)
	<-second.exited
	onlyFrom(t, front, "one")
	second.start(t)
	onlyFrom(t, front, "one", "two")
	for i, l := range loads {
		asked, lost := l.end()
		t.Logf("%d requests, %d lost; connections kept: %t", asked, len(lost), i == 1)
		if asked == 0 || len(lost) > 0 {
			t.Errorf("got %d requests, lost %v", asked, lost)
		}
	}
	select {
	case <-proxy.exited:
		t.Error("haproxy has ended")
	case <-lb.exited:
		t.Error("the agent has ended")
	default:
	}
}

// haproxyService registers one member without a check.
func haproxyService(zk, name, port string) string {
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = "6s"
}
service "web" {
  group     = "/services/web"
  address   = "127.0.0.1"
  port      = %s
  member_id = %q
}
`, zk, port, name)
}

func TestExample_CronLeaderRunsOnOneHost(t *testing.T) {
	testhelp.OnlyAll(t, "TestLeader_HookRunsOnOneHostAndMovesOn proves the rule")
	t.Parallel()
	zk := zktest.Shared(t).Addr() // The example has no chroot.
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	job := filepath.Join(dir, "job")
	// The hook's environment is clean, so the host is told by the settings' id.
	script := fmt.Sprintf("#!/bin/sh\necho \"$ZKAGENT_FENCE $(cat | sed 's/.*\"agent\":\"\\([^\"]*\\)\".*/\\1/') $ZKAGENT_EVENT\" >> %s\n", log)
	if err := os.WriteFile(job, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]*devProcess{}
	for _, id := range []string{"a", "b"} {
		home, err := os.MkdirTemp("", "zkc-") //nolint:usetesting // sockets have short paths
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(home) })
		env := []string{"DIR=" + home, "ZK=" + zk, "JOB=" + job, "ID=" + id, "SCHEDULE=@every 1s"}
		hosts[id] = startTalking(t, binary, env, "run", "--config", "../examples/cron-leader")
	}
	first := hostOfRuns(t, log, 2, "")
	_ = hosts[first].cmd.Process.Kill()
	next := hostOfRuns(t, log, 2, first)
	if next == first {
		t.Errorf("the job still runs on %s, which was killed", first)
	}
}

// hostOfRuns waits for n runs in one term on a host that is not the former one,
// and checks that each term is one host's.
func hostOfRuns(t *testing.T, log string, n int, former string) string {
	t.Helper()
	var host string
	fileHolds(t, log, fmt.Sprintf("%d runs of the job on a host other than %q", n, former), func(s string) bool {
		owner, runs := map[string]string{}, map[string]int{}
		for line := range strings.Lines(s) {
			f := strings.Fields(line)
			if len(f) != 3 || !strings.HasSuffix(line, "\n") {
				continue
			}
			if o, ok := owner[f[0]]; ok && o != f[1] {
				t.Fatalf("term %s ran on %s and on %s", f[0], o, f[1])
			}
			owner[f[0]] = f[1]
			if f[1] != former {
				if runs[f[1]]++; runs[f[1]] >= n {
					host = f[1]
				}
			}
		}
		return host != ""
	})
	return host
}

// The page and the metrics of dev are there.
func TestDev_ShowsThePage(t *testing.T) {
	t.Parallel()
	d := startDev(t, nil, "../examples/quickstart")
	d.says(t, "page")
	url := d.match(t, `page +(http://\S+)`)
	for _, path := range []string{"", "metrics"} {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s%s: %s", url, path, resp.Status)
		}
	}
}

// bareSettings are settings without a seed: a service that nothing answers for, a
// config that is not published, and a file that needs both.
func bareSettings(t *testing.T) string {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	text := `
zookeeper { servers = ["127.0.0.1:2181"] }
service "api" {
  group = "/services/api"
  port  = ` + port + `
  check "tcp" {
    address  = "127.0.0.1:` + port + `"
    interval = "500ms"
    rise     = 1
  }
}
config "web" { path = "/config/web" }
group "api" { path = "/services/api" }
template "web" {
  contents    = "timeout {{ key \"web/timeout\" }}{{ range members \"api\" }}\nserver {{ .ID }}{{ end }}\n"
  destination = "out/web.conf"
}
`
	if err := os.WriteFile(filepath.Join(dir, "zkagent.hcl"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDev_SaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	site := t.TempDir()
	if err := os.WriteFile(filepath.Join(site, "timeout"), []byte("30s"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, nil, bareSettings(t))
	d.says(t, "waiting for config.web")
	d.says(t, "service api: registered")
	publish := strings.Fields(d.match(t, `it continues after: \S+ (config publish DIR .*)`))
	publish[slices.Index(publish, "DIR")] = site
	must(t, publish...)
	d.says(t, "+timeout 30s")
}

// TestDev_SaysHowToFillAGroup: settings whose group has no members name the flag that
// simulates some, and with the flag the file is written.
func TestDev_SaysHowToFillAGroup(t *testing.T) {
	t.Parallel()
	dir := bareSettings(t)
	file, seed := filepath.Join(dir, "zkagent.hcl"), filepath.Join(dir, "seed", "config", "web")
	text, err := os.ReadFile(file)
	if err == nil {
		text = bytes.Replace(text, []byte(`path = "/services/api"`), []byte(`path = "/services/other"`), 1)
		err = errors.Join(os.WriteFile(file, text, 0o644), os.MkdirAll(seed, 0o755), os.WriteFile(filepath.Join(seed, "timeout"), []byte("30s"), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	d := startDev(t, nil, dir)
	d.says(t, "start this command with --members")
	flag := strings.Fields(d.match(t, `start this command with (--members \S+)`))
	startDev(t, nil, append(flag, dir)...).says(t, "+server ")
}

// TestDev_Hosts: three hosts vote on a version, and use it one after the other.
func TestDev_Hosts(t *testing.T) {
	t.Parallel()
	site := t.TempDir()
	write := func(v string) {
		if err := os.WriteFile(filepath.Join(site, "timeout"), []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := startDev(t, nil, "--hosts", "3", bareSettings(t))
	d.says(t, "Try in another terminal")
	zk := d.match(t, `zookeeper +(\S+)`)
	write("30s")
	must(t, "config", "publish", site, "/config/web", "--zk", zk)
	for _, host := range []string{"host-1", "host-2", "host-3"} {
		d.says(t, "+server "+host+"\n")
		d.says(t, "/"+host+"/files/")
	}
	write("60s")
	out := must(t, "config", "publish", site, "/config/web", "--rollout", "--parallel", "1", "--bake", "0s", "--zk", zk)
	if strings.Count(out, "vote host-") != 3 || strings.Count(out, ": done") < 3 {
		t.Errorf("the rollout says\n%s", out)
	}
	eventually(t, "three files to change", func() bool { return strings.Count(d.out.String(), "+timeout 60s") == 3 })
}
