package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// documented is the block of docs/discovery.md after a line, for an agent at an
// address.
func documented(t *testing.T, before, agent string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/discovery.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)\n" + regexp.QuoteMeta(before) + "\n\n```\\w+\n(.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatalf("docs/discovery.md has no block after %q", before)
	}
	return strings.NewReplacer("127.0.0.1:8600", agent+":53", "127.0.0.1@8600", agent+"@53", "127.0.0.1#8600", agent+"#53").Replace(string(m[1]))
}

// The resolvers of a host forward the domain to the agent with the settings of
// docs/discovery.md, and see each change at once.
func TestDNS_ResolversForward(t *testing.T) { //nolint:tparallel // Its subtests build on each other.
	testhelp.OnlyAll(t, "three resolvers, and their caches")
	t.Parallel()
	zk := zookeeper(t)
	s := dialZK(t, zk)
	putMember(t, s, "/services/api", "m1", "10.0.0.1", 8080, 1)
	ip := dnsAddress()
	startAgent(t, "host-1", `
zookeeper { servers = ["`+zk+`"] }
group "api" { path = "/services/api" }
dns { listen = "`+ip+`:53" }
`)
	for name, start := range map[string]func(t *testing.T, ip, dir, port string){"dnsmasq": startDnsmasq, "unbound": startUnbound, "systemd-resolved": startResolved} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			start(t, ip, t.TempDir(), port)
			dig := func(args ...string) []string {
				return append([]string{"dig", "@127.0.0.1", "-p", port, "+short", "+time=2", "+tries=1"}, args...)
			}
			answered(t, []string{"10.0.0.1"}, dig("api.group.zkagent", "A")...)
			answered(t, []string{"1 1 8080 m1.node.api.group.zkagent."}, dig("_api._tcp.group.zkagent", "SRV")...)
			answered(t, []string{"status: NXDOMAIN"}, "sh", "-c", "dig @127.0.0.1 -p "+port+" nosuch.group.zkagent | grep -o 'status: [A-Z]*'")
			other := "m2-" + name // one member that comes and goes three times is damped
			putMember(t, s, "/services/api", other, "10.0.0.2", 8081, 1)
			answered(t, []string{"10.0.0.1", "10.0.0.2"}, dig("api.group.zkagent", "A")...)
			if err := s.Delete(t.Context(), "/services/api/"+other, -1); err != nil {
				t.Fatal(err)
			}
			answered(t, []string{"10.0.0.1"}, dig("api.group.zkagent", "A")...)
		})
	}
}

func startDnsmasq(t *testing.T, ip, dir, port string) {
	conf := filepath.Join(dir, "dnsmasq.conf")
	text := documented(t, "dnsmasq:", ip) + "no-resolv\nno-hosts\nbind-interfaces\nlisten-address=127.0.0.1\nuser=root\npid-file=\nport=" + port + "\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	startTalking(t, "dnsmasq", nil, "--keep-in-foreground", "--conf-file="+conf)
}

func startUnbound(t *testing.T, ip, dir, port string) {
	conf := filepath.Join(dir, "unbound.conf")
	text := documented(t, "unbound:", ip) + "server:\n  interface: 127.0.0.1@" + port + "\n  username: \"\"\n  chroot: \"\"\n  pidfile: \"\"\n  directory: \"" + dir + "\"\n  use-syslog: no\n  num-threads: 1\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	startTalking(t, "unbound", nil, "-d", "-c", conf)
}

// startResolved runs systemd-resolved in a mount namespace. It is unpacked, not
// installed: its package takes /etc/resolv.conf over.
func startResolved(t *testing.T, ip, dir, port string) {
	bin := zktest.Resolved(t)
	conf := filepath.Join(dir, "resolved.conf")
	text := documented(t, "systemd-resolved, in `/etc/systemd/resolved.conf.d/zkagent.conf`:", ip) +
		"LLMNR=no\nMulticastDNS=no\nDNSSEC=no\nDNSStubListener=no\nDNSStubListenerExtra=udp:127.0.0.1:" + port + "\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Fatal(err)
	}
	startTalking(t, "unshare", nil, "-m", "sh", "-c", `
mount -t tmpfs none /run && mkdir /run/systemd /run/systemd/resolved.conf.d && cp "$2" /run/systemd/resolved.conf.d/zkagent.conf &&
for f in passwd group; do grep -v "^systemd-resolve:" /etc/$f >"$3/$f"; done &&
echo "systemd-resolve:x:995:995::/:/usr/sbin/nologin" >>"$3/passwd" && echo "systemd-resolve:x:995:" >>"$3/group" &&
mount --bind "$3/passwd" /etc/passwd && mount --bind "$3/group" /etc/group && exec "$1"`, "sh", bin, conf, dir)
}
