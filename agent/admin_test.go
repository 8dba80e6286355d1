package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// httpGet asks the TCP listener, with a Host header of its own when given.
func httpGet(t *testing.T, a *started, method, path string, header map[string]string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.HTTPAddr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

func TestHTTP_ReadOnlyAndGuarded(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0", Hosts: []string{"agent.example"}}
	c.Bundles = []apply.Config{b.file(`<script>alert(1)</script>`, `{{ key "web/port" }}`)}
	a := b.start(c)
	a.ready()
	for _, x := range []struct {
		method, path string
		header       map[string]string
		want         int
	}{
		{"GET", "/status", nil, 200},
		{"GET", "/healthz", nil, 200},
		{"GET", "/readyz", nil, 200},
		{"GET", "/metrics", map[string]string{"Host": "localhost:1"}, 200},
		{"GET", "/status", map[string]string{"Host": "agent.example"}, 200},
		{"GET", "/status", map[string]string{"Host": "evil.example"}, 403},
		{"GET", "/events", map[string]string{"Origin": "http://evil.example"}, 403},
		{"GET", "/events", map[string]string{"Origin": "null"}, 403},
		{"GET", "/status", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"POST", "/leave", map[string]string{"Content-Type": "application/json"}, 405},
		{"GET", "/debug/pprof/heap", nil, 404},
		{"GET", "/nothing", nil, 404},
	} {
		if code, _, _ := httpGet(t, a, x.method, x.path, x.header); code != x.want {
			t.Errorf("%s %s %v: got %d, want %d", x.method, x.path, x.header, code, x.want)
		}
	}
	code, page, h := httpGet(t, a, "GET", "/", nil)
	if code != 200 || strings.Contains(page, "<script>") || !strings.Contains(page, "&lt;script&gt;") {
		t.Errorf("got %d: %s", code, page)
	}
	if !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("got headers %v", h)
	}
	_, metrics, _ := httpGet(t, a, "GET", "/metrics", nil)
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "zkagent_") {
			t.Errorf("metric %s: %s", p.Metric, p.Text)
		}
	}
}

func TestAdmin_Orders(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Admin.Socket = filepath.Join(testhelp.ShortDir(t), "s")
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	c.Hooks = []hook.Config{{Name: "h", Command: script("cat >> %s; exit 3", b.path("log"))}}
	loaded := c
	c.Load = func() (Config, error) {
		if exists(b.path("broken")) {
			return Config{}, errors.New("zkagent.hcl:3,4: unknown block")
		}
		loaded.Hash = "second"
		loaded.Bundles = []apply.Config{b.file("web.conf", `port {{ key "web/port" }}`)}
		return loaded, nil
	}
	a := b.start(c)
	a.ready()
	client := web.NewClient(c.Admin.Socket)
	ctx := t.Context()

	if err := client.Post(ctx, "/hooks/run", url.Values{"name": {"h"}}); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
	var in struct{ Event, Agent, Name string }
	if err := json.Unmarshal([]byte(read(t, b.path("log"))), &in); err != nil || in.Event != "manual" || in.Name != "h" || in.Agent != "a1" {
		t.Errorf("the hook read %+v, %v", in, err)
	}
	for _, bad := range []string{"/resign", "/maint", "/accept", "/check", "/hooks/run"} {
		if err := client.Post(ctx, bad, url.Values{"name": {"nobody"}}); err == nil || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("%s: got %v", bad, err)
		}
	}
	if err := os.WriteFile(b.path("broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := client.Post(ctx, "/reload", nil); err == nil || !strings.Contains(err.Error(), "zkagent.hcl:3,4") {
		t.Errorf("got %v", err)
	}
	a.condition(condition.SettingsInvalid, "", true)
	b.set("/config/web/port", "81")
	fileIs(t, b.path("web.conf"), "81")
	if err := os.Remove(b.path("broken")); err != nil {
		t.Fatal(err)
	}
	id := a.Status().ZooKeeper.SessionID
	if err := client.Post(ctx, "/reload", nil); err != nil {
		t.Fatal(err)
	}
	a.condition(condition.SettingsInvalid, "", false)
	fileIs(t, b.path("web.conf"), "port 81")
	s, err := client.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.ZooKeeper.SessionID != id || s.Settings.Hash != "second" || len(s.Hooks) != 1 || len(s.Hooks[0].Runs) != 1 || s.Hooks[0].Runs[0].Code != 3 {
		t.Errorf("got %+v", s)
	}
	if err := client.Post(ctx, "/leave", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-a.done; err != nil {
		t.Error(err)
	}
	a.done <- nil
	if exists(c.Admin.Socket) {
		t.Error("the socket was left behind")
	}
	if _, err := client.Status(ctx); !errors.Is(err, web.ErrNoAgent) {
		t.Errorf("got %v, want %v", err, web.ErrNoAgent)
	}
}

func TestAdmin_EventsAreFollowed(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Admin.Socket = filepath.Join(testhelp.ShortDir(t), "s")
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	a := b.start(c)
	a.ready()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	applied := 0
	err := web.NewClient(c.Admin.Socket).Events(ctx, 0, true, func(e event.Event) bool {
		if e.Kind == "applied" {
			applied++
			if applied == 1 {
				b.set("/config/web/port", "81")
			}
		}
		return applied < 2
	})
	if err != nil || applied != 2 {
		t.Errorf("got %d events, %v", applied, err)
	}
}

func TestExec_StartsSignalsAndRestarts(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80", "secret": "s1"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	c.Execs = []ExecConfig{{
		Name: "sig", OnChange: onChangeSignal, Signal: "USR1",
		Command: script(`trap "echo signal >> %[1]s" USR1; echo started $(cat %[2]s) >> %[1]s; while :; do sleep 0.1; done`, b.path("sig"), b.path("web.conf")),
	}, {
		Name: "env", EnvFrom: map[string]string{"SECRET": "web/secret"}, After: []string{},
		Command: script(`echo started $SECRET >> %s; exec sleep 1000`, b.path("env")),
	}}
	a := b.start(c)
	fileIs(t, b.path("sig"), "started 80\n")
	fileIs(t, b.path("env"), "started s1\n")
	b.set("/config/web/secret", "s2")
	fileIs(t, b.path("env"), "started s1\nstarted s2\n")
	b.set("/config/web/port", "81")
	fileIs(t, b.path("sig"), "started 80\nsignal\n")
	var pids []int
	for _, e := range a.Status().Execs {
		pids = append(pids, e.PID)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if pid > 0 && exists("/proc/"+strconv.Itoa(pid)+"/cmdline") {
			t.Errorf("process %d was left behind", pid)
		}
	}
}

func TestExec_EndOfTheProgramEndsTheAgent(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Execs = []ExecConfig{{Name: "p", Command: script("exit 42")}}
	a := b.start(c)
	err := <-a.done
	a.done <- err
	e, ok := errors.AsType[*exitError](err)
	if !ok || e.ExitCode() != 42 {
		t.Errorf("got %v", err)
	}
}
