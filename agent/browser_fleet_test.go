//go:build page

package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// cost is what the browser has spent on the page so far: seconds of processor
// time of its main thread, and counts.
func (b *browser) cost() map[string]float64 {
	b.t.Helper()
	got := map[string]float64{}
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		r, err := chromedp.Call(ctx, performance.GetMetrics, cdp.Empty{})
		if err != nil {
			return err
		}
		for _, m := range r.Metrics {
			got[m.Name] = m.Value
		}
		return nil
	}))
	return got
}

// since logs what the browser has spent since before.
func (b *browser) since(before map[string]float64, what string) map[string]float64 {
	b.t.Helper()
	now := b.cost()
	var text strings.Builder
	for _, name := range []string{"TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration"} {
		fmt.Fprintf(&text, " %s %.1f ms,", strings.TrimSuffix(name, "Duration"), 1000*(now[name]-before[name]))
	}
	b.t.Logf("%s:%s layouts %.0f, nodes %.0f, layout objects %.0f", what, text.String(), now["LayoutCount"]-before["LayoutCount"], now["Nodes"], now["LayoutObjects"])
	return now
}

// hosts500 puts 500 hosts beside those of the page's bed.
func hosts500(b *bed) {
	b.t.Helper()
	for i := range fleet.Shards {
		if err := b.s.CreateParents(b.t.Context(), fmt.Sprintf("%s/%02x/x", fleet.AgentsPath, i)); err != nil {
			b.t.Fatal(err)
		}
	}
	for i := range 5 {
		ops := make([]session.Op, 100)
		for j := range ops {
			ops[j] = session.CreateOp(fleet.AgentPath(fmt.Sprintf("host-%03d", i*100+j)),
				[]byte(`{"version":"1.2.3","health":"ok","since":"2026-01-02T03:04:05Z","files":{"nginx":"ok@118","haproxy":"ok@118"}}`), session.Ephemeral)
		}
		if _, err := b.s.Multi(b.t.Context(), ops...); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestBrowser_Hosts500 shows a fleet of 500 hosts: only rows in view are laid
// out, and an update touches only what it changed.
func TestBrowser_Hosts500(t *testing.T) {
	b, a := pageBed(t)
	hosts500(b)
	w := newBrowser(t, a.HTTPAddr())
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, performance.Enable, performance.EnableParams{TimeDomain: "threadTicks"})
		return err
	}))
	w.do(chromedp.Navigate(w.url + "/agent")) // a browser that was just started is slow
	before := w.cost()
	w.do(chromedp.Navigate(w.url + "/"))
	w.until(`document.querySelectorAll("tbody tr").length >= 504`)
	eval[bool](w, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
	t.Logf("answer after %.0f ms, shown after %.0f ms", eval[float64](w, `performance.getEntriesByType("navigation")[0].responseEnd`),
		eval[float64](w, `performance.getEntriesByType("paint").find(e => e.name === "first-contentful-paint")?.startTime ?? 0`))
	before = w.since(before, "shown")
	w.until(`document.getElementById("live").textContent === "live"`)
	if got := before["LayoutObjects"]; got > 4000 {
		t.Errorf("%.0f layout objects: rows outside the window are laid out", got)
	}

	eval[bool](w, `window.rows = [...document.querySelectorAll("tbody tr")], true`)
	before = w.cost()
	w.refresh()
	before = w.since(before, "refreshed")
	if n := eval[int](w, `window.rows.filter(r => !r.isConnected).length`); n != 0 {
		t.Errorf("%d rows were made again though nothing changed", n)
	}
	if _, err := b.s.Set(t.Context(), fleet.AgentPath("host-250"), []byte(`{"version":"1.2.3","health":"failing","files":{"nginx":"failed"},"faults":[{"code":"a new one"}]}`), -1); err != nil {
		t.Fatal(err)
	}
	for !eval[bool](w, `document.body.textContent.includes("a new one")`) {
		w.refresh()
	}
	w.since(before, "one host changed")
	// It has come up from below the fold, so its row is another.
	if n := eval[int](w, `window.rows.filter(r => !r.isConnected).length`); n != 1 {
		t.Errorf("%d rows were made again for one that changed", n)
	}
	if n := eval[int](w, `[...document.querySelectorAll("table.fleet tbody tr")].findIndex(r => r.dataset.key === "host-250")`); n < 0 || n > 3 {
		t.Errorf("the host that failed is in row %d", n)
	}
	if eval[bool](w, `document.getElementById("more-hosts").open`) {
		t.Error("500 hosts stand there without being asked for")
	}
	if n := eval[int](w, `document.querySelectorAll('table[data-key="hosts"] tbody tr').length`); n > 50 {
		t.Errorf("%d rows stand above the fold", n)
	}
	w.picture("fleet-500")
	before = w.cost()
	eval[bool](w, `document.getElementById("filter").value = "host-49", filter(document), document.body.offsetHeight > 0`)
	w.since(before, "filtered")
	if n := eval[int](w, `[...document.querySelectorAll("table.fleet tbody tr")].filter(r => r.checkVisibility()).length`); n != 10 {
		t.Errorf("the filter shows %d rows, want 10", n)
	}
	eval[bool](w, `document.getElementById("filter").value = "", filter(document), true`)
	if got := w.axe(); len(got) != 0 {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

// refresh has the page fetch itself again.
func (b *browser) refresh() {
	b.t.Helper()
	n := eval[int](b, "Number(document.documentElement.dataset.refreshes || 0)")
	eval[bool](b, "refresh(), true")
	b.until(fmt.Sprintf("Number(document.documentElement.dataset.refreshes || 0) > %d", n))
}
