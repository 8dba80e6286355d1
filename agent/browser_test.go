//go:build page

package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// pageSection is one page of the navigation.
type pageSection struct{ Path, name string }

var sections = []pageSection{
	{"/", "fleet"},
	{"/services", "services"},
	{"/templates", "templates"},
	{"/configs", "configs"},
	{"/rollouts", "rollouts"},
	{"/locks", "locks"},
	{"/timeline", "timeline"},
	{"/agent", "agent"},
}

// browser is one headless Chromium with one tab.
type browser struct {
	t   *testing.T
	ctx context.Context
	url string
}

// newBrowser starts Chromium, in which the name evil.example leads to this
// host.
func newBrowser(t *testing.T, addr string) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1"), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, url: "http://" + addr}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900)); err != nil {
		t.Fatalf("start chromium (apt-get install chromium): %v", err)
	}
	return b
}

// do runs steps within the patience of the tests.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// eval evaluates an expression in the page; a promise is waited for.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	deadline := time.Now().Add(2 * patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !eval[bool](b, "Boolean("+expression+")") {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited in vain for %s in:\n%s", expression, eval[string](b, "document.body.textContent"))
		}
		<-tick.C
	}
}

// untilSays waits until the page has a text. It reads textContent: innerText
// leaves out the rows that the browser has not laid out (content-visibility).
func (b *browser) untilSays(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("document.body.textContent.includes(%q)", text))
}

// scheme makes the browser prefer light or dark.
func (b *browser) scheme(value string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
		})
		return err
	}))
}

// picture keeps a screenshot in $PICTURES.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	data, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// axe runs axe-core over the page and returns what it finds.
func (b *browser) axe() []string {
	b.t.Helper()
	source, err := os.ReadFile(os.Getenv("AXE"))
	if err != nil {
		b.t.Fatalf("axe-core is missing (scripts/test-page gets it): %v", err)
	}
	eval[bool](b, string(source)+"; true")
	return eval[[]string](b, `axe.run(document, {resultTypes: ["violations"]}).then(r =>
		r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html.slice(0, 200) + " " + (n.failureSummary || "").slice(0, 300))))`)
}

// TestBrowser_Sections looks at every section, light and dark: no violation of
// the rules of accessibility, nothing from elsewhere, hostile names as text.
func TestBrowser_Sections(t *testing.T) {
	_, a := pageBed(t)
	b := newBrowser(t, a.HTTPAddr())
	for _, look := range []struct {
		scheme string
		width  int64
	}{{"light", 1400}, {"dark", 1400}, {"light", 400}} {
		b.scheme(look.scheme)
		b.do(chromedp.EmulateViewport(look.width, 900))
		for _, s := range append(slices.Clone(sections), pageSection{"/hosts/broken", "host"}) {
			b.section(s, fmt.Sprintf("%s-%d", look.scheme, look.width))
		}
		// The settings say show_output: each line of the file has its sources.
		b.section(pageSection{"/templates/web.conf", "blame"}, fmt.Sprintf("%s-%d", look.scheme, look.width), "config.web/port: zxid 0x")
	}
	b.do(chromedp.Navigate(b.url + "/services"))
	b.untilSays("web-00<b>")
}

// section looks at one section as it is now.
func (b *browser) section(s pageSection, look string, says ...string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.url + s.Path))
	b.until(`document.getElementById("live").textContent === "live"`)
	for _, text := range says {
		b.untilSays(text)
	}
	if got := b.axe(); len(got) != 0 {
		b.t.Errorf("%s %s: %s", look, s.Path, strings.Join(got, "\n"))
	}
	if n := eval[int](b, `document.querySelectorAll("main script, main b, main i:not([class])").length`); n != 0 {
		b.t.Errorf("%s: %d elements came from names", s.Path, n)
	}
	if got := eval[[]string](b, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith(location.origin + "/"))`); len(got) != 0 {
		b.t.Errorf("%s asks elsewhere: %v", s.Path, got)
	}
	if n := eval[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); n > 0 {
		b.t.Errorf("%s %s: the page is %d pixels too wide", look, s.Path, n)
	}
	if got := eval[[]string](b, `[...document.querySelectorAll("td code")].filter(e => e.textContent.length <= 20 && e.getClientRects().length > 1).map(e => e.textContent)`); len(got) != 0 {
		b.t.Errorf("%s %s: broken into lines: %v", look, s.Path, got)
	}
	if !eval[bool](b, `(() => { const nav = document.querySelector("nav").getBoundingClientRect(), e = document.querySelector("nav [aria-current]")?.getBoundingClientRect(); return !e || e.left >= nav.left - 1 && e.right <= nav.right + 1; })()`) {
		b.t.Errorf("%s %s: the navigation does not show where the reader is", look, s.Path)
	}
	b.picture(s.name + "-" + look)
}

func TestBrowser_Keyboard(t *testing.T) {
	_, a := pageBed(t)
	b := newBrowser(t, a.HTTPAddr())
	b.do(chromedp.Navigate(b.url+"/"), chromedp.KeyEvent("\t"))
	if got := eval[string](b, "document.activeElement.className"); got != "skip" {
		t.Errorf("the first stop is %q, want the link that skips the navigation", got)
	}
	b.do(chromedp.KeyEvent("\r"))
	b.until(`document.activeElement.id === "main"`)
	b.do(chromedp.KeyEvent("/"))
	b.until(`document.activeElement.id === "filter"`)
	// The key's own character is sent by the protocol whatever the page does.
	eval[string](b, `document.activeElement.value = ""`)
	b.do(chromedp.KeyEvent("garbage"))
	b.until(`document.querySelectorAll("table[data-filter] tbody tr:not([hidden])").length === 1`)
	b.refresh()
	b.until(`document.activeElement.id === "filter" && document.activeElement.value === "garbage"`)
	b.until(`document.querySelectorAll("table[data-filter] tbody tr:not([hidden])").length === 1`)
}

// TestBrowser_LiveOverARestart changes things while the page is open, and
// starts the agent again.
func TestBrowser_LiveOverARestart(t *testing.T) {
	b, a := pageBed(t)
	c := *a.cfg.Load()
	c.HTTP = &web.HTTPConfig{Listen: a.HTTPAddr()}
	w := newBrowser(t, a.HTTPAddr())
	w.do(chromedp.Navigate(w.url + "/services"))
	w.until(`document.getElementById("live").textContent === "live"`)
	eval[bool](w, "window.same = true")
	b.ephemeral("/services/web/m2", `{"host":"10.0.0.9","port":81}`)
	w.untilSays("10.0.0.9:81")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	w.until(`document.getElementById("live").textContent !== "live"`)
	b.ephemeral("/services/web/m3", `{"host":"10.0.0.10","port":82}`)
	again := b.start(c)
	again.ready()
	w.until(`document.getElementById("live").textContent === "live"`)
	w.untilSays("10.0.0.10:82")
	if !eval[bool](w, "window.same") {
		t.Error("the page was loaded again as a whole")
	}
}

// TestBrowser_Rebinding reaches the agent by a name that somebody else has
// made lead to this host.
func TestBrowser_Rebinding(t *testing.T) {
	_, a := pageBed(t)
	b := newBrowser(t, a.HTTPAddr())
	_, port, _ := strings.Cut(a.HTTPAddr(), ":")
	b.do(chromedp.Navigate("http://evil.example:" + port + "/"))
	if text := eval[string](b, "document.body.textContent"); !strings.Contains(text, "not one of the agent") {
		t.Errorf("got %s", text)
	}
	if code := eval[int](b, `fetch("/status").then(r => r.status)`); code != http.StatusForbidden {
		t.Errorf("got %d, want %d", code, http.StatusForbidden)
	}
}

// TestBrowser_NoOutputByDefault opens every section of an agent whose commands
// print a secret, and of one whose settings say show_output: only the second shows
// what a check prints, the arguments of a hook and a pending diff.
func TestBrowser_NoOutputByDefault(t *testing.T) {
	for _, show := range []bool{false, true} {
		t.Run(fmt.Sprintf("show_output=%v", show), func(t *testing.T) {
			b := newBed(t)
			everybody(t, b.dir)
			b.tree(map[string]string{"port": "80"})
			c := b.config()
			c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0", ShowOutput: show}
			broken := b.file("broken.conf", "port {{ key \"web/port\" }};\n# Pl4nted-diff\n")
			broken.Check = &apply.CheckConfig{Command: script("echo Pl4nted-check >&2; exit 3")}
			c.Bundles = []apply.Config{broken}
			c.Admin.Socket = filepath.Join(testhelp.ShortDir(t), "s")
			c.Hooks = []hook.Config{{Name: "h", Command: script("echo Pl4nted-output; exit 4 # Pl4nted-argument")}}
			a := b.start(c)
			a.ready()
			// It fails, and its run is kept.
			_ = web.NewClient(c.Admin.Socket).Post(t.Context(), "/hooks/run", url.Values{"name": {"h"}})
			a.condition(condition.TemplateFailed, "broken.conf", true)
			w := newBrowser(t, a.HTTPAddr())
			shown := map[string]bool{}
			for _, s := range sections {
				w.do(chromedp.Navigate(w.url + s.Path))
				w.until(`document.getElementById("live").textContent === "live"`)
				// What is folded away counts, and what the page fetched.
				text := eval[string](w, `document.documentElement.outerHTML`)
				for _, path := range []string{"/status", "/hooks", "/events", "/fleet", "/members", "/metrics"} {
					text += eval[string](w, fmt.Sprintf(`fetch(%q).then(r => r.text())`, path))
				}
				for _, planted := range []string{"diff", "check", "output", "argument"} {
					if strings.Contains(text, "Pl4nted-"+planted) {
						shown[planted] = true
						if !show {
							t.Errorf("%s shows the %s", s.Path, planted)
						}
					}
				}
				if s.Path == "/templates" && !strings.Contains(text, "broken.conf") {
					t.Errorf("the page does not name the template:\n%s", text)
				}
			}
			if show && len(shown) < 3 {
				t.Errorf("show_output shows only %v", shown)
			}
		})
	}
}
