package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

func TestMain(m *testing.M) { zktest.RunMain(m) }

// patience is how long a test waits for what must happen on a busy machine.
const patience = 2 * time.Minute

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func realConfig(addr, root string) session.Config {
	return session.Config{Servers: []string{addr}, Chroot: root, Timeout: 10 * time.Second}
}

func dialReal(t *testing.T, cfg session.Config) *session.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// start registers a service in a session until the returned function ends it.
func start(t *testing.T, s *session.Session, c ServiceConfig) (*Registrar, func()) {
	t.Helper()
	r := NewRegistrar(c)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.RunChecks(ctx) })
	wg.Go(func() { _ = r.Run(ctx, s) })
	return r, sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func service(group, format, id string, port int) ServiceConfig {
	return ServiceConfig{Name: id, Groups: []string{group}, Format: format, MemberID: id, Address: "127.0.0.1", Port: port}
}

func drain(t *testing.T, r *Registrar) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Drain(ctx); err != nil {
		t.Fatal(err)
	}
}

// follow follows a group in a session of its own.
func follow(t *testing.T, cfg session.Config, c GroupConfig) *runner {
	t.Helper()
	r := run(t, cfg, NewGroup(c))
	t.Cleanup(r.stop)
	return r
}

// All formats on a real server: what the registrar writes, the group reads.
func TestReal_RegisterAndFollow(t *testing.T) {
	t.Parallel()
	cfg := realConfig(zktest.Shared(t).Addr(), zktest.Root(t))
	s := dialReal(t, cfg)
	for _, format := range []string{FormatNerve, FormatServerSet, FormatCurator, FormatTemplate} {
		group := "/services/" + format
		m := follow(t, cfg, GroupConfig{Name: format, Path: group})
		var stops []func()
		var all []*Registrar
		for n := range 3 {
			c := service(group, format, fmt.Sprintf("m%d", n+1), n+1)
			c.Template = "{{.Address}}"
			r, stop := start(t, s, c)
			stops, all = append(stops, stop), append(all, r)
		}
		wait(t, format+": three members", m.shows(1, 2, 3))
		drain(t, all[1])
		wait(t, format+": two members", m.shows(1, 3))
		for _, stop := range stops {
			stop()
		}
	}
	own, err := s.Ephemerals(t.Context(), "/services")
	if err != nil || len(own) != 8 {
		t.Errorf("a Run that ends leaves its member: got %v, %v", own, err)
	}
}

// A server that was replaced by an empty one gets its members back.
func TestReal_WipedServer(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	srv := zktest.Start(t)
	cfg := realConfig(srv.Addr(), "")
	cfg.Timeout = 4 * time.Second
	r := NewRegistrar(service("/services/web", FormatNerve, "a", 1))
	m := run(t, cfg, r)
	t.Cleanup(m.stop)
	g := follow(t, cfg, GroupConfig{Name: "web", Path: "/services/web"})
	wait(t, "registered", g.shows(1))
	srv.Stop(t)
	srv.Wipe(t)
	srv.Start(t)
	wait(t, "registered in the new tree", func() bool {
		all := g.group()
		return r.Status().Registered && len(all.Members) == 1 && !all.Missing && all.Members[0].Czxid > 0 && g.State() == session.Connected
	})
}

// 500 services of one process are all back after the ensemble was replaced.
func TestReal_ManyServicesComeBack(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own, and fifty services")
	t.Parallel()
	const splay = 5 * time.Second
	services := testhelp.Rounds(50, 500)
	srv := zktest.Start(t)
	cfg := realConfig(srv.Addr(), "")
	cfg.Timeout = 6 * time.Second
	mgr, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = mgr.Run(ctx) })
	all := make([]*Registrar, services)
	for i := range all {
		c := service(fmt.Sprintf("/services/s%03d", i), FormatNerve, fmt.Sprintf("m%03d", i), i+1)
		c.Splay = splay
		all[i] = NewRegistrar(c)
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := mgr.Session(ctx)
				if err != nil {
					return
				}
				_ = all[i].Run(ctx, s)
			}
		})
	}
	registered := func() bool {
		for _, r := range all {
			if !r.Status().Registered {
				return false
			}
		}
		return true
	}
	wait(t, "registered", registered)
	old, err := mgr.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	srv.Kill(t)
	srv.Wipe(t)
	srv.Start(t)
	wait(t, "another session", func() bool { return old.Context().Err() != nil })
	defer func() {
		for _, r := range all {
			if s := r.Status(); t.Failed() && !s.Registered {
				t.Logf("not back: %+v", s)
			}
		}
	}()
	wait(t, "all back", registered)
	other := dialReal(t, cfg)
	groups, _, err := other.Children(t.Context(), "/services")
	if err != nil || len(groups) != services {
		t.Errorf("%d groups, %v", len(groups), err)
	}
}

// kazoo reads what we write, and we read what it writes.
func TestInterop_Kazoo(t *testing.T) {
	t.Parallel()
	python := needProgram(t, "/usr/bin/python3", "python3-kazoo")
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import kazoo").CombinedOutput(); err != nil {
		t.Fatalf("kazoo is not installed: %s; run: apt-get install -y --no-install-recommends python3-kazoo (or scripts/setup-tests)", out)
	}
	cfg := realConfig(zktest.Shared(t).Addr(), zktest.Root(t))
	s := dialReal(t, cfg)
	m := follow(t, cfg, GroupConfig{Name: "web", Path: "/web"})
	c := service("/web", FormatNerve, "ours", 1)
	c.Labels, c.Weight = map[string]string{"az": "a"}, new(3)
	_, stop := start(t, s, c)
	defer stop()
	wait(t, "registered", m.shows(1))
	script := `
import json, sys
from kazoo.client import KazooClient
zk = KazooClient(hosts=sys.argv[1]); zk.start(timeout=60)
for name in zk.get_children("/web"):
    data, stat = zk.get("/web/" + name)
    print(json.dumps({"node": name, "data": json.loads(data), "ephemeral": stat.ephemeralOwner != 0}))
zk.create("/web/theirs_", b'{"host":"127.0.0.1","port":2,"name":"theirs"}', ephemeral=True, sequence=True)
print("ready", flush=True)
sys.stdin.read()
zk.stop()
`
	p := program(t, exec.CommandContext(t.Context(), python, "-c", script, cfg.Servers[0]+cfg.Chroot))
	lines := p.until(t, "ready")
	want := `{"node": "ours_0000000000", "data": {"host": "127.0.0.1", "port": 1, "name": "ours", "weight": 3, "labels": {"az": "a"}}, "ephemeral": true}`
	if !slices.Contains(lines, want) {
		t.Errorf("got %q, want %s", lines, want)
	}
	wait(t, "its member", m.shows(1, 2))
	p.end(t)
	wait(t, "its member gone", m.shows(1))
}

// Curator's ServiceDiscovery lists what we write, writes the same bytes, and
// we read what it writes.
func TestInterop_Curator(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("testdata", "java", "Discovery.java"))
	if err != nil {
		t.Fatal(err)
	}
	cp := classPath(t)
	cp += ":" + testhelp.JavaClasses(t, cp, "Discovery", source)
	cfg := realConfig(zktest.Shared(t).Addr(), zktest.Root(t))
	s := dialReal(t, cfg)
	m := follow(t, cfg, GroupConfig{Name: "web", Path: "/services/web", Format: FormatCurator})
	c := service("/services/web", FormatCurator, "ours", 1)
	c.Curator = CuratorOptions{PayloadClass: "Discovery$Meta", PayloadID: "application-1", URISpec: springURI, SSLPort: 444}
	c.Labels = map[string]string{"instance_status": "UP"}
	r, stop := start(t, s, c)
	defer stop()
	wait(t, "registered", m.shows(1))
	p := program(t, exec.CommandContext(t.Context(), "/usr/bin/java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", cp, "Discovery", cfg.Servers[0]+cfg.Chroot, "/services", "web"))
	lines := p.until(t, "ready")
	if want := "found ours 127.0.0.1:1 ssl 444 payload application-1 {instance_status=UP} uri http://127.0.0.1:1 enabled true"; !slices.Contains(lines, want) {
		t.Errorf("got %q, want %s", lines, want)
	}
	wait(t, "its member", m.shows(1, 2))
	// Its own bytes for the same instance are ours, but for the time.
	ours, _, err := s.Get(t.Context(), r.Status().Nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	theirs, _, err := s.Get(t.Context(), "/services/web/theirs")
	if err != nil {
		t.Fatal(err)
	}
	same := func(data []byte) string {
		text := strings.NewReplacer("theirs", "ours", `"port":2`, `"port":1`).Replace(string(data))
		at := fmt.Sprint(curatorRegistered(data).UnixMilli())
		return strings.Replace(text, at, "AT", 1)
	}
	if same(ours) != same(theirs) {
		t.Errorf("ours   %s\ntheirs %s", same(ours), same(theirs))
	}
	p.end(t)
	wait(t, "its member gone", m.shows(1))
}

// Prometheus discovers members by nerve and serverset, and drops them.
func TestInterop_Prometheus(t *testing.T) {
	t.Parallel()
	prometheus := needProgram(t, "/usr/bin/prometheus", "prometheus")
	cfg := realConfig(zktest.Shared(t).Addr(), "")
	root := zktest.Root(t)
	s := dialReal(t, cfg)
	nerve, stopNerve := start(t, s, service(root+"/nerve", FormatNerve, "n1", 9001))
	defer stopNerve()
	set := service(root+"/set", FormatServerSet, "s1", 9002)
	set.Ports, set.Shard = map[string]int{"http-admin": 9990}, new(0)
	serverSet, stopSet := start(t, s, set)
	defer stopSet()
	wait(t, "registered", func() bool { return nerve.Status().Registered && serverSet.Status().Registered })

	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	settings := fmt.Sprintf(`
scrape_configs:
- job_name: nerve
  nerve_sd_configs: [{servers: ["%[1]s"], paths: ["%[2]s/nerve"], timeout: 30s}]
- job_name: serverset
  serverset_sd_configs: [{servers: ["%[1]s"], paths: ["%[2]s/set"], timeout: 30s}]
`, cfg.Servers[0], root)
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := freeAddress(t)
	program(t, exec.CommandContext(t.Context(), prometheus, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen, "--log.level=error"))
	targets := func() map[string]map[string]string { return promTargets(t, listen) }
	wait(t, "both discovered", func() bool { return len(targets()) == 2 })
	if got := targets()["127.0.0.1:9001"]; got["__meta_nerve_endpoint_name"] != "n1" || got["__meta_nerve_endpoint_host"] != "127.0.0.1" {
		t.Errorf("nerve: %v", got)
	}
	if got := targets()["127.0.0.1:9002"]; got["__meta_serverset_status"] != "ALIVE" || got["__meta_serverset_endpoint_port_http_admin"] != "9990" || got["__meta_serverset_shard"] != "0" {
		t.Errorf("serverset: %v", got)
	}
	for _, r := range []*Registrar{nerve, serverSet} {
		drain(t, r)
	}
	wait(t, "both dropped", func() bool { return len(targets()) == 0 })
}

// promTargets returns the discovered labels of each target by address.
func promTargets(t *testing.T, listen string) map[string]map[string]string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+"/api/v1/targets?state=active", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return map[string]map[string]string{"not yet": nil}
	}
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				DiscoveredLabels map[string]string `json:"discoveredLabels"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return map[string]map[string]string{"not yet": nil}
	}
	found := map[string]map[string]string{}
	for _, target := range answer.Data.ActiveTargets {
		found[target.DiscoveredLabels["__address__"]] = target.DiscoveredLabels
	}
	return found
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func needProgram(t *testing.T, path, pkg string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run: apt-get install -y --no-install-recommends %s (or scripts/setup-tests)", err, pkg)
	}
	return path
}

func classPath(t *testing.T) string {
	t.Helper()
	var jars []string
	for _, name := range []string{"curator-x-discovery", "curator-recipes", "curator-framework", "curator-client", "zookeeper", "slf4j-simple"} {
		jars = append(jars, needProgram(t, "/usr/share/java/"+name+".jar", "libcurator-discovery-java libcurator-recipes-java libzookeeper-java libslf4j-java"))
	}
	return strings.Join(jars, ":")
}

// peer is a program that a test runs; it ends when its standard input does.
type peer struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	once  sync.Once
	done  chan struct{}

	mu  sync.Mutex // guards out
	out bytes.Buffer
}

func (c *peer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func program(t *testing.T, cmd *exec.Cmd) *peer {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &peer{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = c, c
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(c.done); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd.Path, c.text())
		}
	})
	return c
}

func (c *peer) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// until waits for a line and returns all lines so far.
func (c *peer) until(t *testing.T, line string) []string {
	t.Helper()
	wait(t, c.cmd.Path+" prints "+line, func() bool { return strings.Contains(c.text(), line+"\n") })
	return strings.Split(c.text(), "\n")
}

// end closes its standard input and waits for its end.
func (c *peer) end(t *testing.T) {
	t.Helper()
	c.once.Do(func() { _ = c.stdin.Close() })
	select {
	case <-c.done:
	case <-time.NewTimer(patience).C:
		t.Fatalf("%s does not end", c.cmd.Path)
	}
}
