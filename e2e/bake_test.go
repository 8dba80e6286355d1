package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// A fleet whose tree has the rollout: no flag is typed. A good version reaches all
// hosts; the check looks after each. A bad one stays on the canary, and the halt names the
// figure, whether a command or Prometheus has it.
func TestBakeCheck_HaltsTheFleet(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, c := range []struct{ kind, check, reason string }{
		{"command", `command = ["sh", "SHARED/slo.sh"]`, "exit status 1: 5xx rate 7 %"},
		{"prometheus", "prometheus {\n url = \"http://PROM\"\n query = \"max(error_rate)\"\n max = 0.05\n }", "max(error_rate) is 0.25, which is not at most 0.05"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			zk, shared := zookeeper(t), t.TempDir()
			files := func() []string { return []string{shared + "/web-1", shared + "/web-2", shared + "/web-3"} }
			using := func(word string) int {
				n := 0
				for _, f := range files() {
					if data, err := os.ReadFile(f); err == nil && string(data) == word {
						n++
					}
				}
				return n
			}
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				rate := 0.01
				if using("bad") > 0 {
					rate = 0.25
				}
				_, _ = fmt.Fprintf(w, "error_rate %g\n", rate)
			}))
			t.Cleanup(service.Close)
			prom := ""
			if c.kind == "prometheus" {
				prom = startPrometheus(t, newAgent(t, "prometheus", ""), `
global: {scrape_interval: 1s}
scrape_configs: [{job_name: web, static_configs: [{targets: ["`+service.Listener.Addr().String()+`"]}]}]
`)
				eventually(t, "the figure", func() bool {
					resp, err := http.Get("http://" + prom + "/api/v1/query?query=error_rate")
					if err != nil {
						return false
					}
					defer resp.Body.Close()
					answer := make([]byte, 1000)
					n, _ := resp.Body.Read(answer)
					return strings.Contains(string(answer[:n]), "0.01")
				})
			}
			if err := os.WriteFile(shared+"/slo.sh", []byte("! grep -q bad "+shared+"/web-* || { echo 5xx rate 7 %; exit 1; }\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			settings := strings.NewReplacer("SHARED", shared, "PROM", prom).Replace(`
zookeeper { servers = ["` + zk + `"] }
config "site" {
  path = "/config/site"
  rollout {
    bake_check {
      interval = "1s"
      fall     = 2
      ` + c.check + `
    }
  }
}
template "out" {
  destination = "SHARED/${agent.id}"
  contents    = "{{ key \"site/word\" }}"
}
`)
			var desk *agentProcess
			for _, f := range files() {
				id := filepath.Base(f)
				desk = newAgent(t, id, strings.ReplaceAll(settings, "${agent.id}", id))
				desk.start(t)
			}
			publish := func(word string) (string, int) {
				dir := t.TempDir()
				writeKey(t, dir, "word", word)
				writeKey(t, dir, config.RolloutKey, `{"parallel": 1, "canary": 1, "bake": "5s", "vote_timeout": "80s", "grace": "10m"}`)
				return desk.run(t, "config", "publish", dir, "site")
			}
			if out, code := publish("one"); code != 0 || strings.Contains(out, "vote") {
				t.Fatalf("the first version: exit %d:\n%s", code, out)
			}
			eventually(t, "the first version", func() bool { return using("one") == 3 })
			eventually(t, "three subscribers", func() bool {
				out, _ := desk.run(t, "fleet", "site")
				return strings.Count(out, "web-") >= 3 && !strings.Contains(out, "behind")
			})
			if out, code := publish("good"); code != 0 || using("good") != 3 {
				t.Fatalf("a good version: exit %d:\n%s", code, out)
			}
			out, code := publish("bad")
			if code == 0 || using("bad") != 1 || !strings.Contains(strings.Join(strings.Fields(out), " "), c.reason) {
				t.Errorf("a bad version: exit %d, on %d hosts:\n%s", code, using("bad"), out)
			}
			if out, code := desk.run(t, "rollout", "undo", "site", "--vote-timeout", "80s"); code != 0 || using("good") != 3 {
				t.Errorf("undo: exit %d:\n%s", code, out)
			}
		})
	}
}
