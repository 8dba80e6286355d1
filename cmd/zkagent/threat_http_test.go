package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
)

// soon polls until ok is true.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-tick.C
	}
}

// TestThreat_HTTP: a local user holds more connections to the page than the agent
// has file descriptors, and reads all that the page serves. The agent goes on with
// its work, and what commands print is not served.
func TestThreat_HTTP(t *testing.T) {
	t.Parallel()
	addr, s := inMemory(t)
	publish := func(value string) {
		t.Helper()
		if _, err := fleet.Publish(context.WithoutCancel(t.Context()), s, fleet.PublishConfig{Path: "/config/web", Keys: map[string][]byte{"key": []byte(value)}}); err != nil {
			t.Fatal(err)
		}
	}
	publish("first")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := free.Addr().String()
	_ = free.Close()
	dir, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	settings, out, socket := filepath.Join(dir, "z.hcl"), filepath.Join(dir, "out"), filepath.Join(dir, "s")
	text := fmt.Sprintf(`zookeeper { servers = [%q] }
http { listen = %q }
admin { socket = %q }
config "web" { path = "/config/web" }
template "good" {
  contents    = "{{ key \"web/key\" }}"
  destination = %q
}
template "leak" {
  contents    = "{{ key \"web/key\" }} Pl4nted-diff\n"
  destination = %q
  check { command = ["sh", "-c", "echo Pl4nted-check >&2; exit 3", "Pl4nted-argument"] }
}
hook "leak" {
  schedule = "0 0 1 1 *"
  command  = ["sh", "-c", "echo Pl4nted-output; exit 4", "Pl4nted-argument"]
}
`, addr, page, socket, out, filepath.Join(dir, "leak"))
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	agent := exec.Command("sh", "-c", `ulimit -n 256; exec zkagent run -c "$1"`, "sh", settings)
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("the agent said:\n%s", log.String())
		}
	})
	rendered := func(want string) {
		t.Helper()
		soon(t, "the file to be "+want, func() bool {
			data, err := os.ReadFile(out)
			return err == nil && string(data) == want
		})
	}
	rendered("first")
	_ = exec.Command("zkagent", "hooks", "run", "leak", "-c", settings).Run() // it fails, and its run is kept
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: limit}
	get := func(path string) string {
		resp, err := client.Get("http://" + page + path)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	soon(t, "the failed check", func() bool { return strings.Contains(get("/status"), "template-failed") })
	for _, path := range []string{"/", "/services", "/templates", "/rollouts", "/locks", "/timeline", "/agent", "/status", "/hooks", "/events", "/fleet", "/members", "/metrics", "/healthz", "/readyz", "/v1/groups", "/sd/prometheus"} {
		body := get(path)
		if strings.Contains(body, "Pl4nted") {
			t.Errorf("%s serves what a command printed:\n%s", path, body)
		}
	}
	// The records of hosts in ZooKeeper, which everybody may read, have none of it.
	export, err := exec.Command("zkagent", "zk", "export", "/zkagent", "--zk", addr).Output()
	if err != nil || strings.Contains(string(export), "Pl4nted") {
		t.Errorf("ZooKeeper has what a command printed, or cannot be read: %v\n%s", err, export)
	}
	if err != nil || !strings.Contains(string(export), "template-failed") {
		t.Errorf("the record of the host does not say that the check has failed:\n%s", export)
	}

	for i := range 600 {
		c, err := net.Dial("tcp", page)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
		case 1:
			_, _ = io.WriteString(c, "GET /templates HTTP/1.1\r\nHost: localh")
		}
	}
	publish("second")
	rendered("second")
	if out, err := exec.Command("zkagent", "status", "-c", settings, "-o", "json").Output(); err != nil || !strings.Contains(string(out), "Pl4nted-output") {
		t.Errorf("the admin socket does not have the output: %v\n%s", err, out)
	}
	soon(t, "an answer beside 600 connections", func() bool { return get("/healthz") != "" })
}
