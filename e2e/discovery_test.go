package e2e

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// dialZK opens a session of the test's own.
func dialZK(t *testing.T, zk string) *session.Session {
	t.Helper()
	servers, chroot, err := session.ParseServers(zk)
	if err != nil {
		t.Fatal(err)
	}
	s, err := session.Dial(t.Context(), session.Config{Servers: servers, Chroot: chroot, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// memberData returns the data of the members of a group by the first word of
// their names.
func memberData(t *testing.T, s *session.Session, group string) map[string]string {
	t.Helper()
	names, _, err := s.Children(t.Context(), group)
	if err != nil {
		return nil
	}
	all := map[string]string{}
	for _, name := range names {
		if data, _, err := s.Get(t.Context(), session.JoinPath(group, name)); err == nil {
			word, _, _ := strings.Cut(name, "_")
			all[word] = string(data)
		}
	}
	return all
}

// sickServers are a plain server, one that wants a client's certificate, and
// one that answers the gRPC health protocol; all are well until sick is set.
func sickServers(t *testing.T, sick *atomic.Bool) (plain, secure, grpc *httptest.Server) {
	t.Helper()
	plain = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "t" || r.Host != "web.example.org" {
			w.WriteHeader(http.StatusForbidden)
		}
		// The status is the same: only the body differs.
		_, _ = fmt.Fprintf(w, "state: %s\n", map[bool]string{true: "red", false: "green"}[sick.Load()])
	}))
	t.Cleanup(plain.Close)
	secure = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	secure.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	grpc = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		state := byte(1) // SERVING
		if sick.Load() {
			state = 2
		}
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, state})
		w.Header().Set("Grpc-Status", "0")
	}))
	grpc.Config.Protocols = new(http.Protocols)
	grpc.Config.Protocols.SetUnencryptedHTTP2(true)
	grpc.Start()
	t.Cleanup(grpc.Close)
	return plain, secure, grpc
}

const checkedService = `
service "%[1]s" {
  group       = "/services/all"
  member_id   = "%[1]s"
  address     = "127.0.0.1"
  port        = 1
  weight      = 10
  %[3]s
  check "%[2]s" {
    interval = "500ms"
    timeout  = "500ms"
    rise     = 1
    fall     = 2
    %[4]s
  }
}
`

// Each kind of check, as the settings describe it, against what it checks.
func TestDiscovery_ChecksOfEveryKind(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	var sick atomic.Bool
	plain, secure, grpc := sickServers(t, &sick)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a := newAgent(t, "checks", "")
	if err := os.WriteFile(a.path("ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	zktest.Certificate(t, a.path("client.pem"), "agent")
	a.write(t, "ok", "")
	var settings strings.Builder
	fmt.Fprintf(&settings, "agent {\n  id = \"checks\"\n  state_dir = \"DIR/state\"\n}\nadmin { socket = \"DIR/sock\" }\nzookeeper { servers = [%q] }\n", zk)
	for _, c := range [][4]string{
		{"http", "http", "", fmt.Sprintf("url = %q\nheaders = { X-Token = \"t\", Host = \"web.example.org\" }\nstatus = \"200\"\nbody = \"(?m)^state: green$\"", plain.URL)},
		{"https", "http", "", fmt.Sprintf("url = %q\nstatus = \"202,300-308\"\ntls {\n  ca_file = \"ca.pem\"\n  cert_file = \"client.pem\"\n  key_file = \"client.pem\"\n  server_name = \"example.com\"\n}", secure.URL)},
		{"grpc", "grpc", "warm_up = \"2s\"", fmt.Sprintf("address = %q", grpc.Listener.Addr())},
		{"tcp", "tcp", "", fmt.Sprintf("address = %q", listener.Addr())},
		{"exec", "exec", "on_critical = \"status\"", fmt.Sprintf("command = [\"test\", \"-e\", %q]", a.path("ok"))},
	} {
		fmt.Fprintf(&settings, checkedService, c[0], c[1], c[2], c[3])
	}
	a.write(t, "agent.hcl", settings.String())
	a.start(t)
	s := dialZK(t, zk)
	there := func(what string, names ...string) {
		t.Helper()
		slices.Sort(names)
		eventually(t, what, func() bool {
			var found []string
			for name, data := range memberData(t, s, "/services/all") {
				if !strings.Contains(data, `"available":false`) && strings.Contains(data, `"weight":10`) {
					found = append(found, name)
				}
			}
			slices.Sort(found)
			return slices.Equal(found, names)
		})
	}
	there("all well", "http", "https", "grpc", "tcp", "exec")
	sick.Store(true)
	_ = listener.Close()
	if err := os.Remove(a.path("ok")); err != nil {
		t.Fatal(err)
	}
	there("none well")
	eventually(t, "the one that is kept with its status", func() bool {
		all := memberData(t, s, "/services/all")
		return len(all) == 1 && strings.Contains(all["exec"], `"available":false`)
	})
	sick.Store(false)
	a.write(t, "ok", "")
	there("all but the closed port", "http", "https", "grpc", "exec")
	a.statusHolds(t, `"connect: dial tcp`, `connection refused`)
}

// What a member must not say, each of which would change an nginx
// configuration that prints it.
var hostileMembers = []string{
	`{"host":"127.0.0.1:1; } server { listen 127.0.0.1:18099; location / { root /etc; } } upstream pwn { server 127.0.0.1","port":80,"name":"a"}`,
	`{"host":"127.0.0.1\n}\nserver { listen 127.0.0.1:18099; }\n#","port":80,"name":"b"}`,
	`{"host":"127.0.0.1","port":"80; } server { listen 127.0.0.1:18099; }","name":"c"}`,
	`{"host":"127.0.0.1","port":80,"weight":"1; } server { listen 127.0.0.1:18099; }","name":"d"}`,
	`{"host":"unix:/etc/passwd","port":80,"name":"h"}`, `{"host":"$host","port":80,"name":"i"}`,
	`{"host":"#127.0.0.1","port":80,"name":"j"}`, `{"host":"{{ key \"shop/secret\" }}","port":80,"name":"k"}`,
	`{"host":"169.254.169.254","port":80,"name":"l"}`, `{"host":"::1%lo; }","port":80,"name":"m"}`, `{"host":"127.1","port":80,"name":"n"}`,
	`{"host":"$(reboot)","port":80,"name":"o"}`, "{\"host\":\"`reboot`\",\"port\":80,\"name\":\"p\"}", "\x00\xff", "", "[]",
}

// Names of znodes are data too.
var hostileNodes = []string{"a; } server { listen 127.0.0.1:18099; }", "a b", "$(reboot)", "a'b", `a"b`, "a`b", "a{b", "a#b", "a|b", "a&b", "a<b", "ä"}

func TestNginx_HostileMembersInjectNothing(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/shop", map[string]string{"timeouts/read": "5s", "secret": "hunter2"})
	one, _ := backend(t, "one")
	s := dialZK(t, zk)
	put := func(node, data string) {
		t.Helper()
		path := "/services/api/" + node
		if err := s.CreateParents(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Create(t.Context(), path, []byte(data), session.Persistent); err != nil {
			t.Fatalf("%q: %v", node, err)
		}
	}
	for i, data := range hostileMembers {
		put(fmt.Sprintf("m_%010d", i), data)
	}
	for _, node := range hostileNodes {
		put(node, `{"host":"127.0.0.1","port":80,"name":"x"}`)
	}
	put("good_0000000099", fmt.Sprintf(`{"host":"127.0.0.1","port":%s,"name":"g; } server { listen 127.0.0.1:18099; }","labels":{"zone":"z; } server { listen 127.0.0.1:18099; }"}}`, portOf(one)))
	web, nginx := startWeb(t, zk)
	web.write(t, "labels.conf.tmpl", `# {{ range members "api" }}{{ .Labels.zone }}{{ else }}nobody{{ end }}`)
	settings, err := os.ReadFile(web.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	web.write(t, "agent.hcl", string(settings)+"\ntemplate \"labels\" {\n  source = \"labels.conf.tmpl\"\n  destination = \"DIR/conf.d/labels.conf\"\n}\n")
	nginx.start(t)
	web.start(t)
	conf := fileContains(t, web.path("conf.d/upstreams.conf"), "127.0.0.1:"+portOf(one))
	onlyFrom(t, nginx, "one")
	if n := strings.Count(conf, "server "); n != 1 || strings.Contains(conf, "18099") || strings.Contains(conf, "hunter2") {
		t.Errorf("got\n%s", conf)
	}
	// Free text in a label reaches no file that prints the label: the template that
	// names it leaves the member out.
	if labels := fileContains(t, web.path("conf.d/labels.conf"), "# nobody"); strings.Contains(labels, "server") {
		t.Errorf("a label with a line of configuration was printed: %s", labels)
	}
	out, code := web.run(t, "members", "api", "--here", "-o", "json")
	if n := strings.Count(out, `"reason"`); code != 0 || n != len(hostileMembers)+len(hostileNodes) {
		t.Errorf("%d of %d are rejected with a reason:\n%s", n, len(hostileMembers)+len(hostileNodes), out)
	}
	out, code = web.run(t, "members", "api", "-o", "wide")
	if code != 0 || strings.Contains(out, "\x00") || strings.Contains(out, "\x1b") || strings.Contains(out, "\xff") {
		t.Errorf("exit %d, %q", code, out)
	}
}
