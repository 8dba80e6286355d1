package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// newerRelease is the Debian release whose nginx and HAProxy are asked, too.
const newerRelease = "forky"

// lbWay is one way in which a load balancer learns of members.
type lbWay struct {
	name     string
	lossless bool // no request may fail, on new or on kept connections
	start    func(*lbFleet, *testing.T) clients
}

var lbWays = []lbWay{
	{"nginx 1.22, file and reload", false, (*lbFleet).nginxFile},
	{"nginx 1.22, DNS in a variable", true, (*lbFleet).nginxVariable},
	{"nginx 1.30, DNS with resolve", true, (*lbFleet).nginxResolve},
	{"HAProxy 2.6, file and reload", false, (*lbFleet).haproxyFile},
	{"HAProxy 2.6, DNS (SRV)", true, func(f *lbFleet, t *testing.T) clients { return f.haproxyDNS(t, "haproxy") }},
	{"HAProxy 3.2, DNS (SRV)", true, func(f *lbFleet, t *testing.T) clients {
		return f.haproxyDNS(t, zktest.Program(t, newerRelease, "haproxy")...)
	}},
	{"HAProxy 2.6, runtime API", true, func(f *lbFleet, t *testing.T) clients { return f.haproxyRuntime(t, "haproxy") }},
	{"HAProxy 3.2, runtime API", true, func(f *lbFleet, t *testing.T) clients {
		return f.haproxyRuntime(t, zktest.Program(t, newerRelease, "haproxy")...)
	}},
	{"Go, registry.Transport", true, (*lbFleet).transport},
}

// Members join, drain, go into maintenance and leave behind load balancers under
// load. LB_CHANGES makes that many changes for each way; LB_TABLE is a file for the
// table of docs/load-balancers.md.
func TestLoadBalancers(t *testing.T) {
	testhelp.OnlyAll(t, "load balancers under load for a minute")
	changes, err := strconv.Atoi(os.Getenv("LB_CHANGES"))
	measure := err == nil
	if !measure {
		changes = 4
	}
	var table strings.Builder
	for _, way := range lbWays {
		if !measure && !way.lossless {
			continue // it promises nothing
		}
		t.Run(way.name, func(t *testing.T) {
			f := newLBFleet(t)
			f.via = way.start(f, t)
			f.answers(t, "the first members to answer", func(who map[string]int) bool { return len(who) == lbMembers })
			load := startLBLoad(t, f)
			for i := range changes {
				f.change(t, i)
			}
			got := load.end()
			slices.Sort(f.live)
			row := fmt.Sprintf("| %s | %d | %d of %d | %d of %d | %s | %s | %s |", way.name, changes, got.lost[0], got.asked[0], got.lost[1], got.asked[1],
				round(got.p99), round(f.live[len(f.live)/2]), round(f.live[len(f.live)-1]))
			t.Log(row)
			table.WriteString(row + "\n")
			if way.lossless && got.lost[0]+got.lost[1] > 0 || got.asked[0] == 0 || got.asked[1] == 0 {
				t.Errorf("lost %v of %v requests: %v", got.lost, got.asked, got.errors)
			}
		})
	}
	if path := os.Getenv("LB_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func round(d time.Duration) string {
	if d < 100*time.Millisecond {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// clients are one that makes a connection for each request, and one that keeps its
// connections.
type clients [2]http.RoundTripper

// lbMembers are there before and after each round of changes.
const lbMembers = 4

// lbFleet is a group of HTTP servers on one port of several addresses, so that
// records without a port name them, too.
type lbFleet struct {
	zk      string
	s       *session.Session
	port    int
	dir     string
	servers map[int]*http.Server
	members []int // that are registered, oldest first
	next    int   // the next one is new: a member that comes and goes would be damped
	via     clients
	live    []time.Duration // from each change until the load balancer follows it
	guard   string          // the guard block of the agent's group
	each    string          // what the templates list
}

func newLBFleet(t *testing.T) *lbFleet {
	t.Helper()
	f := emptyLBFleet(t, zookeeper(t))
	for range lbMembers {
		f.join(t)
	}
	return f
}

func emptyLBFleet(t *testing.T, zk string) *lbFleet {
	t.Helper()
	port, err := strconv.Atoi(freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "zkl-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's workers are another user
		t.Fatal(err)
	}
	f := &lbFleet{zk: zk, s: dialZK(t, zk), port: port, dir: dir, servers: map[int]*http.Server{}, guard: "guard { enabled = false }", each: `members "api"`}
	if err := f.s.CreateParents(t.Context(), "/services/api/x"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range f.servers {
			_ = s.Close()
		}
	})
	return f
}

func lbName(n int) string { return fmt.Sprintf("m%d", n) }
func lbHost(n int) string { return fmt.Sprintf("127.0.7.%d", n+1) }

// join starts a server and registers it.
func (f *lbFleet) join(t *testing.T) int {
	t.Helper()
	n := f.serve(t)
	if _, _, err := f.s.Create(t.Context(), "/services/api/"+lbName(n), f.data(n, ""), session.Ephemeral); err != nil {
		t.Fatal(err)
	}
	return n
}

// serve starts a server.
func (f *lbFleet) serve(t *testing.T) int {
	t.Helper()
	n := f.next
	f.next++
	l, err := net.Listen("tcp", net.JoinHostPort(lbHost(n), strconv.Itoa(f.port)))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, lbName(n)) })}
	f.servers[n] = s
	go func() { _ = s.Serve(l) }()
	f.members = append(f.members, n)
	return n
}

func (f *lbFleet) data(n int, status string) []byte {
	more := ""
	if status != "" {
		more = fmt.Sprintf(`,"available":false,"unavailable_reason":%q`, status)
	}
	return fmt.Appendf(nil, `{"host":%q,"port":%d,"name":%q%s}`, lbHost(n), f.port, lbName(n), more)
}

func (f *lbFleet) set(t *testing.T, n int, status string) {
	t.Helper()
	if _, err := f.s.Set(t.Context(), "/services/api/"+lbName(n), f.data(n, status), -1); err != nil {
		t.Fatal(err)
	}
}

func (f *lbFleet) leave(t *testing.T, n int) {
	t.Helper()
	if err := f.s.Delete(t.Context(), "/services/api/"+lbName(n), -1); err != nil {
		t.Fatal(err)
	}
	f.members = slices.DeleteFunc(f.members, func(m int) bool { return m == n })
}

// stop ends a server once its requests are answered, as a good service does.
func (f *lbFleet) stop(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := f.servers[n].Shutdown(ctx); err != nil {
		t.Error(err)
	}
	delete(f.servers, n)
}

// change makes one change and waits until the load balancer follows it.
func (f *lbFleet) change(t *testing.T, i int) {
	t.Helper()
	serves := func(n int, want bool) {
		t.Helper()
		began := time.Now()
		f.answers(t, fmt.Sprintf("%s to get requests: %t", lbName(n), want), func(who map[string]int) bool { return (who[lbName(n)] > 0) == want })
		f.live = append(f.live, time.Since(began))
	}
	switch i % 4 {
	case 0:
		serves(f.join(t), true)
	case 1: // a member that drains, leaves, and ends
		n := f.members[len(f.members)-1]
		f.set(t, n, view.StatusDraining)
		serves(n, false)
		f.leave(t, n)
		f.stop(t, n)
	case 2:
		n := f.members[i/4%lbMembers]
		f.set(t, n, view.StatusMaintenance)
		serves(n, false)
		f.set(t, n, "")
		serves(n, true)
	case 3: // a member that leaves without draining, and serves on for a while
		n := f.members[0]
		f.leave(t, n)
		serves(n, false)
		f.stop(t, n)
		serves(f.join(t), true)
	}
}

// answers waits until 40 requests in turn are answered, and those who answer fit. A
// worker of the configuration before the last reload may still take a connection.
func (f *lbFleet) answers(t *testing.T, what string, fit func(map[string]int) bool) {
	t.Helper()
	eventually(t, what, func() bool {
		who := map[string]int{}
		for range 40 {
			name, err := f.ask(t.Context(), 0)
			if err != nil {
				return false
			}
			who[name]++
		}
		return fit(who)
	})
}

// ask makes one request.
func (f *lbFleet) ask(ctx context.Context, kept int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
	if err != nil {
		return "", err
	}
	resp, err := f.via[kept].RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return string(body), err
}

// lbLoad are clients in a closed loop: two make a connection for each request, two
// keep theirs.
type lbLoad struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex // guards the rest
	asked  [2]int
	lost   [2]int
	took   []time.Duration
	p99    time.Duration
	errors []string
}

func startLBLoad(t *testing.T, f *lbFleet) *lbLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &lbLoad{cancel: cancel}
	t.Cleanup(func() { l.end() })
	for i := range 4 {
		kept := i % 2
		l.wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond) // no host runs out of ports by it.
			defer tick.Stop()
			for ctx.Err() == nil {
				began := time.Now()
				_, err := f.ask(context.WithoutCancel(ctx), kept)
				l.note(kept, time.Since(began), err)
				<-tick.C
			}
		})
	}
	return l
}

func (l *lbLoad) note(kept int, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[kept]++
	l.took = append(l.took, took)
	if err != nil {
		l.lost[kept]++
		l.errors = append(l.errors, fmt.Sprintf("%s: %v", time.Now().UTC().Format("15:04:05.000"), err))
	}
}

func (l *lbLoad) end() *lbLoad {
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Sort(l.took); len(l.took) > 0 {
		l.p99 = l.took[len(l.took)*99/100]
	}
	return l
}

// to are clients of one address; empty: of the address of the request.
func (f *lbFleet) to(t *testing.T, addr string) clients {
	t.Helper()
	var c clients
	for kept := range c {
		tr := &http.Transport{DisableKeepAlives: kept == 0, MaxIdleConnsPerHost: 10}
		if addr != "" {
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			}
		}
		t.Cleanup(tr.CloseIdleConnections)
		c[kept] = tr
	}
	return c
}

// agent starts an agent that follows the group, and returns the address of its DNS.
func (f *lbFleet) agent(t *testing.T, more string) string {
	t.Helper()
	ip := dnsAddress()
	startAgent(t, "lb", fmt.Sprintf("zookeeper { servers = [%q] }\ngroup \"api\" {\n  path = \"/services/api\"\n  %s\n}\ndns { listen = \"%s:53\" }\n%s", f.zk, f.guard, ip, more))
	answered(t, []string{strconv.Itoa(len(f.members))}, "sh", "-c", "dig @"+ip+" +short +time=2 +tries=1 api.group.zkagent | wc -l | tr -d ' '")
	return ip
}

func (f *lbFleet) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// run starts a load balancer; it ends with the test.
func (f *lbFleet) run(t *testing.T, command ...string) {
	t.Helper()
	startTalking(t, command[0], nil, command[1:]...)
}

// nginx starts nginx with these lines of its http block.
func (f *lbFleet) nginx(t *testing.T, command []string, http string) clients {
	t.Helper()
	addr := "127.0.0.1:" + freePort(t)
	for _, d := range []string{"tmp", "conf.d"} {
		if err := os.MkdirAll(filepath.Join(f.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var temp strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "  %s_temp_path %s/tmp/%[1]s;\n", kind, f.dir)
	}
	conf := f.file(t, "nginx.conf", strings.NewReplacer("ADDR", addr, "DIR", f.dir, "PORT", strconv.Itoa(f.port)).Replace(`
worker_processes 2;
pid DIR/nginx.pid;
error_log DIR/error.log warn;
events { worker_connections 256; }
http {
  access_log off;
`+temp.String()+http+"\n}\n"))
	f.run(t, append(slices.Clone(command), "-p", f.dir, "-e", "error.log", "-c", conf, "-g", "daemon off;")...)
	return f.to(t, addr)
}

func (f *lbFleet) nginxFile(t *testing.T) clients {
	f.file(t, "up.tmpl", "upstream api {\n{{ range "+f.each+" }}  server {{ .Address }};\n{{ else }}  server 127.0.0.1:1;\n{{ end }}}\n")
	f.file(t, "upstreams.conf", "upstream api { server 127.0.0.1:1; }\n")
	rt := f.nginx(t, []string{"nginx"}, "  include DIR/upstreams.conf;\n  server {\n    listen ADDR;\n    location / { proxy_pass http://api; }\n  }")
	eventually(t, "nginx to run", func() bool {
		pid, err := os.ReadFile(filepath.Join(f.dir, "nginx.pid"))
		return err == nil && len(pid) > 0
	})
	f.agent(t, fmt.Sprintf("template \"up\" {\n  source = \"%[1]s/up.tmpl\"\n  destination = \"%[1]s/upstreams.conf\"\n  reload {\n    command = [\"nginx\", \"-p\", %[1]q, \"-e\", \"error.log\", \"-s\", \"reload\", \"-c\", \"%[1]s/nginx.conf\"]\n    min_interval = \"1s\"\n  }\n}\n", f.dir))
	return rt
}

func (f *lbFleet) nginxVariable(t *testing.T) clients {
	ip := f.agent(t, "")
	return f.nginx(t, []string{"nginx"}, "  resolver "+ip+":53 valid=1s ipv6=off;\n  server {\n    listen ADDR;\n    location / {\n      set $api api.group.zkagent;\n      proxy_pass http://$api:PORT;\n    }\n  }")
}

func (f *lbFleet) nginxResolve(t *testing.T) clients {
	ip := f.agent(t, "")
	return f.nginx(t, zktest.Program(t, newerRelease, "nginx"), "  resolver "+ip+":53 valid=1s ipv6=off;\n  upstream api {\n    zone api 64k;\n    server group.zkagent service=_api._tcp resolve;\n  }\n  server {\n    listen ADDR;\n    location / { proxy_pass http://api; }\n  }")
}

const lbHAProxy = `global
  stats socket DIR/haproxy.sock mode 600 level admin expose-fd listeners
  maxconn 256
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  retries 3
  option redispatch
MORE
frontend in
  bind ADDR
  default_backend web
backend web
  balance roundrobin
`

// haproxy writes its settings and returns their path and its address.
func (f *lbFleet) haproxy(t *testing.T, more, servers string) (conf, addr string) {
	t.Helper()
	addr = "127.0.0.1:" + freePort(t)
	return f.file(t, "haproxy.cfg", strings.NewReplacer("DIR", f.dir, "ADDR", addr, "MORE", more).Replace(lbHAProxy)+servers), addr
}

func (f *lbFleet) haproxyFile(t *testing.T) clients {
	conf, addr := f.haproxy(t, "", "  server none 127.0.0.1:1\n")
	head, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	base, _, _ := strings.Cut(string(head), "  server none")
	f.file(t, "haproxy.tmpl", base+"{{ range $i, $m := "+f.each+" }}  server s{{ $i }} {{ $m.Address }}\n{{ else }}  server none 127.0.0.1:1\n{{ end }}")
	pid := filepath.Join(f.dir, "haproxy.pid")
	f.run(t, "haproxy", "-W", "-p", pid, "-f", conf)
	eventually(t, "haproxy to run", func() bool { data, err := os.ReadFile(pid); return err == nil && len(data) > 0 })
	f.agent(t, fmt.Sprintf("template \"cfg\" {\n  source = \"%[1]s/haproxy.tmpl\"\n  destination = \"%[1]s/haproxy.cfg\"\n  reload {\n    command = [\"sh\", \"-c\", \"kill -USR2 $(cat %[1]s/haproxy.pid)\"]\n    min_interval = \"1s\"\n  }\n}\n", f.dir))
	return f.to(t, addr)
}

func (f *lbFleet) haproxyDNS(t *testing.T, command ...string) clients {
	ip := f.agent(t, "")
	resolvers := "resolvers zkagent\n  nameserver agent " + ip + ":53\n  accepted_payload_size 1232\n  timeout resolve 1s\n  timeout retry 1s\n  hold valid 1s"
	conf, addr := f.haproxy(t, resolvers, "  server-template slot 20 _api._tcp.group.zkagent resolvers zkagent resolve-prefer ipv4 init-addr none\n")
	f.run(t, append(slices.Clone(command), "-db", "-f", conf)...)
	return f.to(t, addr)
}

func (f *lbFleet) haproxyRuntime(t *testing.T, command ...string) clients {
	conf, addr := f.haproxy(t, "", "  server-template slot 20 127.0.0.1:1 disabled\n")
	f.run(t, append(slices.Clone(command), "-db", "-f", conf)...)
	eventually(t, "haproxy's socket", func() bool { _, err := os.Stat(filepath.Join(f.dir, "haproxy.sock")); return err == nil })
	// Changes follow each other so fast that the guard would hold the members.
	settings := f.file(t, "slots.hcl", chrooted(fmt.Sprintf("zookeeper { servers = [%q] }\ngroup \"api\" {\n  path = \"/services/api\"\n  guard { enabled = false }\n}\n", f.zk)))
	f.run(t, binary, "haproxy", "--config", settings, "--socket", filepath.Join(f.dir, "haproxy.sock"), "--backend", "web", "api")
	return f.to(t, addr)
}

// transport is no load balancer: the client itself knows the members.
func (f *lbFleet) transport(t *testing.T) clients {
	p := registry.NewProvider(registry.ProviderConfig{})
	s := dialZK(t, f.zk)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- registry.NewGroup(registry.GroupConfig{Name: "api", Path: "/services/api", Guard: registry.GuardConfig{Off: true}}).Run(ctx, s, p.Update)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := f.to(t, "")
	for kept, base := range c {
		c[kept] = &registry.Transport{Provider: p, Base: base}
	}
	return c
}
