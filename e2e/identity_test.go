package e2e

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// strict makes a server refuse clients that have not proved an identity.
var strict = zktest.Options{JVMFlags: []string{"-Dzookeeper.sessionRequireClientSASLAuth=true"}}

// doesItsJob runs an agent, with an identity of that scheme or without, through its
// whole job: it registers, renders, leads, and a config is published. The znodes are
// its own.
func doesItsJob(t *testing.T, zk, auth, scheme string) *agentProcess {
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
	out, code := a.run(t, "zk", "acl", "/services/web", "--config", a.path("agent.hcl"))
	if code != 0 || !strings.Contains(out, cmp.Or(scheme, "world")+":") {
		t.Errorf("ACL of the group: exit %d\n%s", code, out)
	}
	return a
}

func TestIdentity_DigestMD5(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own, and the session's tests have one")
	t.Parallel()
	zk := zktest.Start(t, zktest.WithSASL(t, strict, zktest.DigestSection(map[string]string{"agent": "secret"})))
	auth := `  auth "sasl" {
    mechanism  = "DIGEST-MD5"
    credential = "agent:secret"
  }`
	doesItsJob(t, zk.Addr(), auth, "sasl")
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
	testhelp.OnlyAll(t, "a Kerberos server")
	t.Parallel()
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "zkagent/host1")
	zk := zktest.Start(t, kdc.ServerOptions(t, "127.0.0.1", strict))
	auth := `  auth "sasl" {
    mechanism = "GSSAPI"
    principal = "zkagent/host1@` + zktest.Realm + `"
    keytab    = "` + keytab + `"
    krb5_conf = "` + kdc.Conf() + `"
  }`
	doesItsJob(t, zk.Addr(), auth, "sasl")
}

// A client certificate is an identity; its files are read at each connection.
func TestIdentity_Certificate(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own")
	t.Parallel()
	dir := t.TempDir()
	server, client, renewed := filepath.Join(dir, "server.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "renewed.pem")
	var trusted []byte
	// Authorities of one name are one to Java, so the renewed one has another.
	for file, name := range map[string]string{server: "zk", client: "web1", renewed: "web2"} {
		zktest.Certificate(t, file, name)
		cert, err := os.ReadFile(file + ".cert.pem")
		if err != nil {
			t.Fatal(err)
		}
		trusted = append(trusted, cert...)
	}
	trust := filepath.Join(dir, "trust.pem")
	if err := os.WriteFile(trust, trusted, 0o600); err != nil {
		t.Fatal(err)
	}
	zk := zktest.Start(t, zktest.Options{Secure: true, Settings: []string{
		"ssl.keyStore.location=" + server, "ssl.trustStore.location=" + trust, "ssl.clientAuth=need",
		"authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
	}})
	proxy := zktest.NewProxy(t, zk.SecureAddr())
	_, port, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	identity := `  acl = ["x509:CN=web1:cdrwa", "world:anyone:r"]
  tls {
    ca_file   = "` + server + `.cert.pem"
    cert_file = "` + client + `.cert.pem"
    key_file  = "` + client + `"
  }`
	a := doesItsJob(t, "localhost:"+port, identity, "x509")
	if out, code := a.run(t, "zk", "whoami", "/services/web", "--config", a.path("agent.hcl")); code != 0 || !strings.Contains(out, "x509:CN=web1\n") || !strings.Contains(out, "/services/web: cdrwa\n") {
		t.Errorf("whoami: exit %d\n%s", code, out)
	}
	id := a.status(t).ZooKeeper.SessionID
	replace := func(cert, key []byte) {
		t.Helper()
		for file, data := range map[string][]byte{client + ".cert.pem": cert, client: key} {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		proxy.DropConnections()
	}
	replace([]byte("no certificate"), []byte("no key"))
	a.await(t, "the damaged files to be read", func(s *show.Status) bool {
		return s.ZooKeeper.State != "connected" && strings.Contains(s.ZooKeeper.LastError, "tls")
	})
	cert, err := os.ReadFile(renewed + ".cert.pem")
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(renewed)
	if err != nil {
		t.Fatal(err)
	}
	replace(cert, key)
	a.await(t, "the renewed certificate to be used by the session", func(s *show.Status) bool {
		return s.ZooKeeper.State == "connected" && s.ZooKeeper.SessionID == id
	})
}

// Servers that insist on an identity accept one that they know. The error for others
// says what is missing.
func TestIdentity_Enforced(t *testing.T) {
	testhelp.OnlyAll(t, "two servers of its own")
	t.Parallel()
	digest := "  auth \"digest\" {\n    credential = \"agent:secret\"\n  }"
	sasl := "  auth \"sasl\" {\n    mechanism  = \"DIGEST-MD5\"\n    credential = \"agent:secret\"\n  }"
	for scheme, auth := range map[string]string{"digest": digest, "sasl": sasl} {
		o := zktest.WithSASL(t, zktest.Options{}, zktest.DigestSection(map[string]string{"agent": "secret"}))
		o.JVMFlags = append(o.JVMFlags, "-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes="+scheme)
		zk := zktest.Start(t, o)
		doesItsJob(t, zk.Addr(), auth, scheme)
		none := newAgent(t, "host-2", "zookeeper {\n  servers = [\""+zk.Addr()+"\"]\n}\n")
		out, code := none.run(t, "zk", "ls", "/", "--config", none.path("agent.hcl"))
		if code == 0 || !strings.Contains(out, "requires authentication") {
			t.Errorf("%s: without an identity: exit %d\n%s", scheme, code, out)
		}
	}
}

// An agent whose only server is an observer does its whole job.
func TestObserver_DoesTheWholeJob(t *testing.T) {
	testhelp.OnlyAll(t, "an ensemble")
	t.Parallel()
	e := zktest.StartEnsemble(t, 4, zktest.Options{Observers: 1})
	if mode := e.Servers[3].Mode(t); mode != "observer" {
		t.Fatalf("the last server is %s", mode)
	}
	doesItsJob(t, e.Servers[3].Addr(), "", "")
}
