package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

var dnsAddresses atomic.Int64

// dnsAddress is an address of the loopback that no other test listens on, with the
// port that resolvers expect.
func dnsAddress() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 77+dnsAddresses.Add(1), pid>>8&255, pid&255)
}

// putMember writes a member in the nerve format.
func putMember(t *testing.T, s *session.Session, group, name, host string, port, weight int) {
	t.Helper()
	data := fmt.Sprintf(`{"host":%q,"port":%d,"name":%q,"weight":%d}`, host, port, name, weight)
	if err := s.CreateParents(t.Context(), group+"/"+name); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), group+"/"+name, []byte(data), session.Ephemeral); err != nil {
		t.Fatal(err)
	}
}

// answered waits until a command prints these lines, in any order.
func answered(t *testing.T, want []string, command ...string) {
	t.Helper()
	var got []string
	var err error
	var out []byte
	eventually(t, strings.Join(command, " ")+": "+strings.Join(want, ", "), func() bool {
		out, err = exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		got = strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
		slices.Sort(got)
		return err == nil && slices.Equal(got, want)
	})
}

// dig, Python's dnspython and the resolver of the C library read the answers;
// they follow joins and leaves, and outlive an outage and a restart in it.
func TestDNS(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := ownZooKeeper(t)
	s := dialZK(t, zk.Addr())
	putMember(t, s, "/services/api", "m1", "10.0.0.1", 8080, 3)
	ip := dnsAddress()
	a := startAgent(t, "host-1", `
zookeeper { servers = ["`+zk.Addr()+`"] }
group "api" { path = "/services/api" }
group "late" { path = "/services/late" }
dns { listen = "`+ip+`:53" }
`)
	dig := func(args ...string) []string {
		return append([]string{"dig", "@" + ip, "+short", "+time=2", "+tries=1"}, args...)
	}
	answered(t, []string{"10.0.0.1"}, dig("api.group.zkagent", "A")...)
	if out, _ := a.run(t, "doctor"); !strings.Contains(out, "it answers for zkagent. over UDP and TCP") {
		t.Errorf("doctor:\n%s", out)
	}
	putMember(t, s, "/services/api", "m2", "10.0.0.2", 8081, 1)
	srv := []string{"1 1 8081 m2.node.api.group.zkagent.", "1 3 8080 m1.node.api.group.zkagent."}
	answered(t, srv, dig("_api._tcp.group.zkagent", "SRV")...)
	answered(t, srv, dig("+tcp", "api.group.zkagent", "SRV")...)
	answered(t, []string{"10.0.0.2"}, dig("M2.Node.API.group.zkagent")...)
	answered(t, []string{"10.0.0.1", "10.0.0.2"}, "/usr/bin/python3", "-c", `
import dns.resolver
r = dns.resolver.Resolver(configure=False)
r.nameservers = ["`+ip+`"]
for s in r.resolve("api.group.zkagent", "SRV"):
    for a in r.resolve(s.target, "A"):
        print(a)`)
	if os.Geteuid() != 0 {
		t.Fatal("the resolver of the C library is tested in a mount namespace: run as root")
	}
	a.write(t, "resolv.conf", "nameserver "+ip+"\noptions timeout:2\n")
	a.write(t, "nsswitch.conf", "hosts: dns\n")
	answered(t, []string{"10.0.0.1", "10.0.0.2"}, "unshare", "-m", "sh", "-c", `
mount --bind "$1/resolv.conf" "$(readlink -f /etc/resolv.conf)" && mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf &&
getent ahostsv4 api.group.zkagent | awk '{print $1}' | sort -u`, "sh", a.dir)
	for name, status := range map[string]string{"nosuch.group.zkagent": "NXDOMAIN", "late.group.zkagent": "NOERROR", "example.org": "REFUSED"} {
		answered(t, []string{"status: " + status}, "sh", "-c", "dig @"+ip+" "+name+" | grep -o 'status: [A-Z]*'")
	}

	if err := s.Delete(t.Context(), "/services/api/m2", -1); err != nil {
		t.Fatal(err)
	}
	answered(t, []string{"10.0.0.1"}, dig("api.group.zkagent", "A")...)

	// The last known good view is written once things have settled; then
	// ZooKeeper goes, and the agent is killed and started again.
	eventually(t, "the last good view to be saved", func() bool {
		kept, err := lastgood.Load(a.path("state"))
		if err != nil || kept == nil {
			return false
		}
		g, ok := kept.Group("api")
		return ok && len(g.Members) == 1 && g.Members[0].Host == "10.0.0.1"
	})
	zk.Stop(t)
	a.signal(t, syscall.SIGKILL)
	<-a.exited
	a.start(t)
	answered(t, []string{"10.0.0.1"}, dig("api.group.zkagent", "A")...)
	a.statusHolds(t, "zookeeper-unreachable")
}

// Prometheus scrapes a member after its join, and no longer after its leave.
func TestPrometheusDiscovery(t *testing.T) {
	testhelp.OnlyAll(t, "a registry test has a real Prometheus, too")
	t.Parallel()
	zk := zookeeper(t)
	s := dialZK(t, zk)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "answer 42\n")
	}))
	t.Cleanup(target.Close)
	at := netip.MustParseAddrPort(target.Listener.Addr().String())
	putMember(t, s, "/services/web", "m1", "127.0.0.1", int(at.Port()), 1)
	listen := "127.0.0.1:" + freePort(t)
	a := startAgent(t, "host-1", `
zookeeper { servers = ["`+zk+`"] }
groups "all" { path = "/services" }
http { listen = "`+listen+`" }
`)
	prom := startPrometheus(t, a, `
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: zkagent
    http_sd_configs: [{url: "http://`+listen+`/sd/prometheus?groups=all", refresh_interval: 1s}]
    relabel_configs:
      - {source_labels: [__meta_zkagent_group], target_label: group}
`)
	scraped := func() string {
		resp, err := http.Get("http://" + prom + "/api/v1/query?query=answer")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	eventually(t, "the member to be scraped", func() bool { return strings.Contains(scraped(), `"group":"all/web"`) })
	if err := s.Delete(t.Context(), "/services/web/m1", -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member to be scraped no longer", func() bool { return strings.Contains(scraped(), `"result":[]`) })
}

// startPrometheus runs a Prometheus server in the directory of an agent until the test
// ends, and returns its address.
func startPrometheus(t *testing.T, a *agentProcess, settings string) string {
	t.Helper()
	addr := "127.0.0.1:" + freePort(t)
	a.write(t, "prometheus.yml", settings)
	p := exec.Command("prometheus", "--config.file="+a.path("prometheus.yml"), "--storage.tsdb.path="+a.path("tsdb"), "--web.listen-address="+addr)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return addr
}
