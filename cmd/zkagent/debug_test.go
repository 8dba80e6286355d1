package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secretSettings have a secret wherever settings take one. The commands print those that
// begin with PLANT-out.
const secretSettings = `
agent {
  id        = "a1"
  state_dir = "DIR/state"
  env       = { DB_PASSWORD = "PLANT-env-a" }
}
log { level = "debug" }
admin { socket = "DIR/s" }
http { listen = "HTTP" }
zookeeper {
  servers = ["ZK"]
  auth "digest" { credential = "agent:PLANT-digest" }
}
config "site" { path = "/config/site" }
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 80
  check "http" {
    url      = "http://user:PLANT-url@HTTP/nothing?token=PLANT-query"
    headers  = { Authorization = "Bearer PLANT-bearer", X-Api-Key = "PLANT-apikey" }
    interval = "200ms"
    fall     = 1
  }
}
template "secret" {
  contents    = "{{ credential \"db\" }}\ndb_password={{ key \"site/db_password\" }}\n"
  destination = "DIR/secret"
  mode        = "0600"
  allow       = ["credential"]
  check {
    command = ["sh", "-c", "cat \"$1\"; exit 1", "--", staged]
    at      = "staged"
  }
}
hook "h" {
  on_change = [config.site]
  command   = ["sh", "-c", "echo token is $API_TOKEN; exit 3"]
  env       = { API_TOKEN = "PLANT-out-hook" }
}
exec "p" {
  command = ["sleep", "600"]
  env     = { PGPASSWORD = "PLANT-exec" }
}
`

// TestDebug_Secrets: no secret of the settings, the credentials or the environment is in an
// archive of "zkagent debug", on the page, in what machines read, in ZooKeeper, or in the
// arguments of a process. The log has none that a command has not printed.
func TestDebug_Secrets(t *testing.T) {
	t.Parallel()
	addr, _ := inMemory(t)
	dir, page := filepath.Dir(socketPath(t)), freeAddress(t)
	file := filepath.Join(dir, "z.hcl")
	text := strings.NewReplacer("DIR", dir, "HTTP", page, "ZK", addr).Replace(secretSettings)
	for name, data := range map[string]string{"z.hcl": text, "credentials/db": "PLANT-out-credential\n", "site/db_password": "PLANT-out-value"} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "ZKAGENT_CONFIG="+file, "NO_COLOR=1", "CREDENTIALS_DIRECTORY="+filepath.Join(dir, "credentials"), "MY_PASSWORD=PLANT-environment")
	zkagent := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("zkagent", args...)
		cmd.Env, cmd.Dir = env, dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("zkagent %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	agent := exec.CommandContext(ctx, "zkagent", "run", "--verbose")
	agent.Env, agent.Stderr, agent.WaitDelay = env, &log, time.Second
	agent.Cancel = func() error { return agent.Process.Signal(os.Interrupt) }
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer cancel()
	zkagent("config", "publish", filepath.Join(dir, "site"), "/config/site", "--yes")
	soon(t, "the failed check, and the hook", func() bool {
		cmd := exec.Command("zkagent", "status", "-o", "json")
		cmd.Env = env
		out, _ := cmd.Output()
		return bytes.Contains(out, []byte("template-failed")) && bytes.Contains(out, []byte("token is"))
	})
	shown := map[string]string{}
	archive, err := gzip.NewReader(strings.NewReader(zkagent("debug", "--file", "-")))
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		data, err2 := io.ReadAll(in)
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		shown["archive: "+name] = string(data)
	}
	for _, path := range []string{"/", "/services", "/templates", "/configs", "/timeline", "/agent", "/status", "/hooks", "/events", "/fleet", "/metrics", "/v1/groups"} {
		resp, err := http.Get("http://" + page + path)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		shown["page: "+path] = string(out)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		data, _ := os.ReadFile(name)
		shown[name] = string(data)
	}
	shown["records in ZooKeeper"] = zkagent("zk", "export", "/zkagent")
	cancel()
	_ = agent.Wait()
	shown["log"] = strings.ReplaceAll(log.String(), "PLANT-out", "") // the log is on the host, and has what commands print
	for name, text := range shown {
		if at := strings.Index(text, "PLANT-"); at >= 0 {
			t.Errorf("%s: %.200q", name, text[max(0, at-60):])
		}
	}
	for _, name := range []string{"status.json", "events.json", "metrics.txt", "settings" + file} {
		if len(shown["archive: "+name]) < 100 {
			t.Errorf("%s of the archive has %d bytes", name, len(shown["archive: "+name]))
		}
	}
}
