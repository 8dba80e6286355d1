//go:build page

package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
)

const siteTree = "/config/site"

// smallFleet is three hosts with a config, a service each, and a browser.
type smallFleet struct {
	*bed

	agents []*started
	w      *browser
}

// start starts the host web-N with a page. The check of its service fails while
// the file sick-N exists, and its reload while its file has the word "bad".
func (f *smallFleet) start(n int) *started {
	f.t.Helper()
	id := fmt.Sprintf("web-%d", n)
	c := f.config()
	c.ID, c.Host, c.StateDir = id, id, f.path("state-"+id)
	c.ZooKeeper.Timeout = 10 * time.Second
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	c.Configs = []config.Config{{Name: "site", Path: siteTree}}
	c.Groups = []registry.GroupConfig{{Name: "web", Path: "/services/web"}}
	c.Services = []registry.ServiceConfig{{
		Name: "web", Groups: []string{"/services/web"}, MemberID: id, Address: "127.0.0.1", Port: 8000 + n, Labels: map[string]string{"zone": string(rune('a' + n))},
		Checks: []registry.CheckConfig{{
			Name: "probe", Kind: registry.CheckExec, Command: []string{"/bin/sh", "-c", "test ! -e " + f.path("sick-"+id)},
			Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 1,
		}},
	}}
	file := f.file("nginx.conf-"+id, "proxy_read_timeout {{ key \"site/timeout\" }};\n")
	file.Name, file.Templates[0].Name = "nginx.conf", "nginx.conf"
	file.Reload = &apply.ReloadConfig{Command: script("! grep -q bad %s", f.path("nginx.conf-"+id))}
	c.Bundles = []apply.Config{file}
	a := f.bed.start(c)
	f.agents = append(f.agents, a)
	return a
}

func (f *smallFleet) keys(timeout string) fleet.PublishConfig {
	return fleet.PublishConfig{Path: siteTree, Keys: map[string][]byte{"timeout": []byte(timeout)}, Message: "timeout " + timeout, Author: "ops"}
}

func (f *smallFleet) publish(timeout string) {
	f.t.Helper()
	if _, err := fleet.Publish(f.t.Context(), f.s, f.keys(timeout)); err != nil {
		f.t.Fatal(err)
	}
}

// rollOut proposes a version and returns the rollout's name once it is as wanted.
func (f *smallFleet) rollOut(timeout, replace string, strategy fleet.Strategy, ok func(*fleet.State) bool) string {
	f.t.Helper()
	ctx := f.t.Context()
	r, err := fleet.Prepare(ctx, f.s, f.keys(timeout))
	if err != nil {
		f.t.Fatal(err)
	}
	name, err := fleet.Propose(ctx, f.s, fleet.Request{Root: siteTree, Version: r.Version, Digest: r.Digest, Replace: replace, Strategy: strategy})
	if err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, "the rollout of timeout "+timeout, func() bool {
		state, err := fleet.Read(ctx, f.s, siteTree, name)
		if err != nil {
			f.t.Fatal(err)
		}
		return ok(state)
	})
	return name
}

// health waits until the first page has so many hosts of a health.
func (f *smallFleet) health(count int, word fleet.Health) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d hosts to be %s", count, word), func() bool {
		hosts, err := fleet.Agents(f.t.Context(), f.s)
		n := 0
		for _, h := range hosts {
			if h.Health == word {
				n++
			}
		}
		return err == nil && n == count
	})
}

// look visits every page in one state, on a desktop and on a phone. The texts are
// on the pages that are named.
func (f *smallFleet) look(state string, says map[string][]string) {
	f.t.Helper()
	for _, width := range []int64{1400, 400} {
		f.w.do(chromedp.EmulateViewport(width, 900))
		if width == 1400 && says["/"] != nil { // The first page is the one with most colours.
			f.w.scheme("dark")
			f.w.section(sections[0], state+"-dark")
			f.w.scheme("light")
		}
		for _, s := range append(slices.Clone(sections), pageSection{"/hosts/web-2", "host"}, pageSection{"/configs/site?from=1&to=2", "config"}) {
			if state == "fresh" && (s.name == "host" || s.name == "config") {
				continue
			}
			f.w.section(s, fmt.Sprintf("%s-%d", state, width), says[s.Path]...)
		}
	}
}

// TestBrowser_States looks at every page in each of the six states of a fleet.
func TestBrowser_States(t *testing.T) {
	b, server := ownBed(t)
	f := &smallFleet{bed: b}

	c := b.config()
	c.ID, c.Configs = "fresh", nil
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	a := b.start(c)
	a.ready()
	f.w = newBrowser(t, a.HTTPAddr())
	f.look("fresh", map[string][]string{
		"/": {"fresh", "1 / 1 live"}, "/services": {"registers no service", "follows no groups"}, "/templates": {"no templates"},
		"/rollouts": {"config publish DIR NAME --rollout"}, "/locks": {"no election"}, "/agent": {"connected"},
	})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := fleet.Forget(t.Context(), b.s, "fresh"); err != nil {
		t.Fatal(err)
	}

	f.publish("30s")
	for n := range 3 {
		f.start(n + 1).ready()
	}
	f.w.url = "http://" + f.agents[0].HTTPAddr()
	f.health(3, fleet.OK)
	f.look("healthy", map[string][]string{
		"/": {"3 ok", "3 hosts, all healthy", "3/3 up", "web-3"}, "/configs": {"v1, 1 key", "timeout 30s"}, "/services": {"127.0.0.1:8002", "zone=c"}, "/templates": {"nginx.conf"}, "/hosts/web-2": {"accepted v1"}, "/configs/site?from=1&to=2": {"version 2 does not exist", "timeout 30s"},
	})
	f.noShift()

	sick := b.path("sick-web-2")
	if err := os.WriteFile(sick, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.health(1, fleet.Failing)
	f.look("critical", map[string][]string{"/": {"1 of 3 hosts failing", "2/3 up", "service-critical web", "1 host", "check probe has failed with exit status 1"}, "/hosts/web-2": {"service-critical web", "check probe has failed"}})
	f.runsSince("web-2")
	if err := os.Remove(sick); err != nil {
		t.Fatal(err)
	}
	f.health(3, fleet.OK)

	name := f.rollOut("60s", "", fleet.Strategy{Parallel: 1, Canary: 1, Bake: fleet.Duration(time.Hour)},
		func(s *fleet.State) bool { return s.Counts().Done == 1 })
	f.look("baking", map[string][]string{"/": {"Rollout of", "3 of 3 voted"}, "/rollouts": {"baking", "1 done", "rollout pause " + siteTree, "ops", "timeout 60s", "What changes"}, "/configs/site?from=1&to=2": {"v1 → v2", "changed", "show_output", "Set in", "was in use"}})
	f.w.do(chromedp.Navigate(f.w.url + "/rollouts"))
	if got := eval[string](f.w, `[...document.querySelectorAll(".roll i")].map(e => e.className + " " + e.title).join("; ")`); !strings.HasPrefix(got, "done web-") || strings.Count(got, ";") != 2 {
		t.Errorf("the bar is %q: it fills from the left, and names its hosts", got)
	}

	if err := fleet.Abort(t.Context(), b.s, siteTree, name, fleet.Order{By: "ops"}); err != nil {
		t.Fatal(err)
	}
	f.rollOut("bad", name, fleet.Strategy{Parallel: 1}, func(s *fleet.State) bool { return s.Phase() == fleet.PhaseHalted })
	f.look("halted", map[string][]string{"/": {"halted"}, "/rollouts": {"halted", "rollout retry " + siteTree, "1 failed"}})

	server.Stop(t)
	eventually(t, "the connection to be lost", func() bool { return f.agents[0].Status().ZooKeeper.State != "connected" })
	f.look("outage", map[string][]string{"/": {"Not up to date", "web-3"}, "/rollouts": {"Not up to date"}, "/services": {"is as of"}, "/locks": {"Not up to date"}})
	for _, path := range []string{"/", "/services"} {
		f.w.do(chromedp.Navigate(f.w.url + path))
		if n := eval[int](f.w, `(() => {
			const grey = getComputedStyle(document.querySelector(".where .mut")).color;
			return [...document.querySelectorAll("#content .dot.ok, #content .dot.bad")].filter(e => !e.closest(".alert") && getComputedStyle(e).color !== grey).length;
		})()`); n > 0 {
			t.Errorf("%s: %d states are not grey in an outage", path, n)
		}
	}
	server.Start(t)
}

// runsSince: where the first page says how long an agent has been running, it agrees with
// the page of the host. The health of the host is younger.
func (f *smallFleet) runsSince(id string) {
	f.t.Helper()
	f.w.do(chromedp.Navigate(f.w.url + "/hosts/" + id))
	want := eval[string](f.w, `[...document.querySelectorAll("dd")].find(e => e.textContent.includes("running for")).querySelector("time").dateTime`)
	f.w.do(chromedp.Navigate(f.w.url + "/"))
	for _, got := range eval[[]string](f.w, fmt.Sprintf(`[...document.querySelectorAll('table.fleet tr[data-key=%q] td[data-label="running for"] time')].map(e => e.dateTime)`, id)) {
		if got != want {
			f.t.Errorf("%s runs since %s, and the first page says since %s", id, want, got)
		}
	}
}

// noShift changes what the pages show, and wants nothing to move.
func (f *smallFleet) noShift() {
	f.t.Helper()
	f.w.do(chromedp.EmulateViewport(1400, 900))
	for i, s := range []struct{ path, text string }{{"/", "web-1"}, {"/services", "weight"}, {"/templates", "version "}} {
		f.w.do(chromedp.Navigate(f.w.url + s.path))
		f.w.until(`document.getElementById("live").textContent === "live"`)
		eval[bool](f.w, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
		// A text that is replaced where it stands is reported with one place twice: it has
		// not moved.
		eval[bool](f.w, `window.moved = [], new PerformanceObserver(l => moved.push(...l.getEntries().filter(e => e.sources.some(s => JSON.stringify(s.previousRect) !== JSON.stringify(s.currentRect))).map(e => e.sources.map(s => (s.node?.outerHTML ?? s.node?.textContent ?? "gone").slice(0, 200) + JSON.stringify([s.previousRect, s.currentRect])).join()))).observe({type: "layout-shift"}), true`)
		version := 2 + i
		f.publish(fmt.Sprintf("%ds", 30+version))
		f.health(3, fleet.OK)
		eventually(f.t, "the version in the record", func() bool {
			hosts, err := fleet.Agents(f.t.Context(), f.s)
			return err == nil && len(hosts) == 3 && hosts[0].Files["nginx.conf"] == fmt.Sprintf("ok@%d", version)
		})
		f.w.refresh()
		eval[bool](f.w, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
		if got := eval[[]string](f.w, "window.moved"); len(got) != 0 {
			f.t.Errorf("%s: an update moved %d times: %s", s.path, len(got), strings.Join(got, "\n"))
		}
	}
}
