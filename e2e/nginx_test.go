package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
)

// nginxProcess is a real nginx with a prefix of its own on a loopback port.
type nginxProcess struct {
	dir  string
	port string
}

// prepareNginx lays out the prefix below dir, as examples/nginx does.
func prepareNginx(t *testing.T, dir string) *nginxProcess {
	t.Helper()
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Fatalf("nginx is not installed: %v; run scripts/setup-tests", err)
	}
	conf, err := os.ReadFile("../examples/nginx/nginx.conf.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	n := &nginxProcess{dir: dir, port: freePort(t)}
	for _, d := range []string{"conf.d", "logs", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's workers are another user
		t.Fatal(err)
	}
	text := strings.NewReplacer("DIR", dir, "PORT", n.port).Replace(string(conf))
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts nginx in the foreground; it ends with the test.
func (n *nginxProcess) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command("nginx", "-p", n.dir, "-e", "logs/error.log", "-c", "nginx.conf", "-g", "daemon off;")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out := &syncBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(n.dir, "logs/error.log"))
			t.Logf("nginx: %s\n%s", out, tail(string(log), 2000))
		}
	})
	eventually(t, "nginx to answer", func() bool {
		_, err := n.get()
		return err == nil || strings.Contains(err.Error(), "status")
	})
}

// oneRequest makes a connection for each request.
var oneRequest = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get makes one request on a connection of its own and returns the body.
func (n *nginxProcess) get() (string, error) {
	resp, err := oneRequest.Get("http://127.0.0.1:" + n.port + "/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", resp.Status)
	}
	return string(body), err
}

// answering makes n requests and returns who answered.
func (n *nginxProcess) answering(count int) map[string]int {
	who := map[string]int{}
	for range count {
		body, err := n.get()
		if err != nil {
			body = "error: " + err.Error()
		}
		who[body]++
	}
	return who
}

func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(zktest.Port(t))
}

// backend is a server that answers with its name, and that a test can make fail.
func backend(t *testing.T, name string) (*httptest.Server, func(healthy bool)) {
	t.Helper()
	state := make(chan bool, 1)
	state <- true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		healthy := <-state
		state <- healthy
		if r.URL.Path == "/health" && !healthy {
			http.Error(w, "ill", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s, func(healthy bool) { <-state; state <- healthy }
}

func portOf(s *httptest.Server) string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// serviceSettings registers one member with a fast http check.
func serviceSettings(zk, port string) string {
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = "4s"
}
service "api" {
  group   = "/services/api"
  address = "127.0.0.1"
  port    = %s
  check "http" {
    url      = "http://127.0.0.1:%s/health"
    interval = "2s"
    timeout  = "2s"
    rise     = 1
    fall     = 2
  }
}
`, zk, port, port)
}

// webSettings is examples/nginx without its agent and admin blocks.
func webSettings(t *testing.T, zk string) string {
	t.Helper()
	data, err := os.ReadFile("../examples/nginx/zkagent.hcl")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), "zookeeper {")
	if !ok {
		t.Fatal("examples/nginx/zkagent.hcl has no zookeeper block")
	}
	return strings.Replace("zookeeper {"+rest, `env("ZK", "127.0.0.1:2181")`, fmt.Sprintf("%q", zk), 1)
}

// startWeb starts an agent that renders nginx's upstreams, and nginx.
func startWeb(t *testing.T, zk string) (*agentProcess, *nginxProcess) {
	t.Helper()
	a := newAgent(t, "web", webSettings(t, zk))
	template, err := os.ReadFile("../examples/nginx/upstreams.conf.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "upstreams.conf.tmpl", string(template))
	n := prepareNginx(t, a.dir)
	a.write(t, "conf.d/upstreams.conf", "upstream api { server 127.0.0.1:1; }\n")
	return a, n
}

// publish writes keys of the config tree.
func publish(t *testing.T, zk, path string, keys map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for k, v := range keys {
		file := filepath.Join(dir, k)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "config", "publish", dir, path, "--zk", zk, "--yes")
}
