package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/session/kerberos"
)

// strict makes a server refuse clients that have not proved an identity.
var strict = zktest.Options{JVMFlags: []string{"-Dzookeeper.sessionRequireClientSASLAuth=true"}}

// doesItsJob runs an agent, with an identity or without, through its whole job: it registers,
// renders, leads, and a config is published. The znodes are its own.
func doesItsJob(t *testing.T, zk, auth string, mechanism session.SASLMechanism) {
	t.Helper()
	settings := `
zookeeper {
  servers = ["` + zk + `"]
` + auth + `
}
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 8080
}
group "web" { path = "/services/web" }
config "web" { path = "/config/web" }
election "nightly" { path = "/elections/nightly" }
hook "led" {
  leader     = election.nightly
  on_elected = true
  command    = ["touch", "DIR/led"]
}
template "out" {
  contents    = "{{ key \"web/color\" }}{{ range members \"web\" }} {{ .Port }}{{ end }}\n"
  destination = "DIR/out"
}
`
	a := startAgent(t, "host-1", settings)
	a.write(t, "tree/color", "red")
	for range 3 { // the first publish makes the tree; agents may be earlier or later
		out, code := a.run(t, "config", "publish", a.path("tree"), "web", "--config", a.path("agent.hcl"), "--yes")
		if code == 0 {
			break
		}
		t.Logf("publish: exit %d\n%s", code, out)
	}
	fileContains(t, a.path("out"), "red 8080")
	fileHolds(t, a.path("led"), "the hook of the leader", func(string) bool { return true })
	acl, _, err := dialed(t, zk, mechanism).GetACL(t.Context(), "/services/web")
	if err != nil || strings.Contains(fmt.Sprint(acl), "sasl") != (mechanism != nil) {
		t.Errorf("ACL of the group: %v, %v", acl, err)
	}
}

func TestIdentity_DigestMD5(t *testing.T) {
	zk := zktest.Start(t, zktest.WithSASL(t, strict, zktest.DigestSection(map[string]string{"agent": "secret"})))
	auth := `  auth "sasl" {
    mechanism  = "DIGEST-MD5"
    credential = "agent:secret"
  }`
	doesItsJob(t, zk.Addr(), auth, session.DigestMD5("agent", "secret"))
	// kazoo proves the same identity, and others see that they may not write.
	script := `
import sys
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
c = KazooClient(hosts=sys.argv[1], sasl_options={"mechanism": "DIGEST-MD5", "username": "agent", "password": "secret"})
c.start(timeout=30)
c.create("/services/web/foreign", b"x")
c.delete("/services/web/foreign")
c.stop()
print("done")`
	if out, err := exec.Command("/usr/bin/python3", "-c", script, zk.Addr()).CombinedOutput(); err != nil || !strings.Contains(string(out), "done") {
		t.Errorf("kazoo: %v\n%s", err, out)
	}
	me := newAgent(t, "host-3", "zookeeper {\n  servers = [\""+zk.Addr()+"\"]\n"+auth+"\n}\n")
	if out, code := me.run(t, "zk", "whoami", "/services/web", "--config", me.path("agent.hcl")); code != 0 || !strings.Contains(out, "sasl:agent\n") || !strings.Contains(out, "/services/web: cdrwa\n") {
		t.Errorf("whoami: exit %d\n%s", code, out)
	}
	if out, _ := me.run(t, "doctor", "--config", me.path("agent.hcl")); !strings.Contains(out, "the server sees sasl:agent") {
		t.Errorf("doctor:\n%s", out)
	}
	a := newAgent(t, "host-2", "zookeeper {\n  servers = [\""+zk.Addr()+"\"]\n}\n")
	out, code := a.run(t, "zk", "get", "/services/web", "--config", a.path("agent.hcl"))
	if code == 0 || !strings.Contains(out, "requires authentication") {
		t.Errorf("without an identity: exit %d\n%s", code, out)
	}
	a.env = append(a.env, "ZKAGENT_AUTH=sasl:agent:wrong")
	out, code = a.run(t, "zk", "get", "/services/web", "--config", a.path("agent.hcl"))
	if code == 0 || !strings.Contains(out, "authentication failed") || strings.Contains(out, "wrong") {
		t.Errorf("with a wrong password: exit %d\n%s", code, out)
	}
}

func TestIdentity_Kerberos(t *testing.T) {
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "zkagent/host1")
	zk := zktest.Start(t, kdc.ServerOptions(t, "127.0.0.1", strict))
	auth := `  auth "sasl" {
    mechanism = "GSSAPI"
    principal = "zkagent/host1@` + zktest.Realm + `"
    keytab    = "` + keytab + `"
    krb5_conf = "` + kdc.Conf() + `"
  }`
	m, err := kerberos.New(kerberos.Config{Principal: "zkagent/host1", Keytab: keytab, Conf: kdc.Conf()})
	if err != nil {
		t.Fatal(err)
	}
	doesItsJob(t, zk.Addr(), auth, m)
}
