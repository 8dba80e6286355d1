package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// TestMetrics_ThousandMembers scrapes an agent that follows groups of a thousand
// members: members add no series, and promtool finds nothing wrong.
func TestMetrics_ThousandMembers(t *testing.T) {
	testhelp.InTurn(t, 2)
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	for i := range 10 {
		ops := make([]session.Op, 0, 101)
		path := fmt.Sprintf("/services/g%d", i)
		if err := b.s.CreateParents(t.Context(), path+"/m"); err != nil {
			t.Fatal(err)
		}
		for j := range 100 {
			ops = append(ops, session.CreateOp(fmt.Sprintf("%s/m%d", path, j), []byte(`{"host":"10.0.0.1","port":80}`), session.Ephemeral))
		}
		if _, err := b.s.Multi(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
	}
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	for i := range 10 {
		c.Groups = append(c.Groups, registry.GroupConfig{Name: fmt.Sprintf("g%d", i), Path: fmt.Sprintf("/services/g%d", i)})
	}
	a := b.start(c)
	a.ready()
	_, text, _ := httpGet(t, a, http.MethodGet, "/metrics", nil)
	groups := 0
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "zkagent_group_members{") && !strings.HasSuffix(line, " 100\n"):
			t.Errorf("got %s, want 100 members", line)
		case strings.Contains(line, `group="g`):
			groups++
		}
	}
	if groups > 60 {
		t.Errorf("%d lines about 10 groups of 100 members", groups)
	}
	check := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool (apt-get install prometheus): %v\n%s", err, out)
	}
}

// scraped is an agent that does not run, with the metrics of 100 templates and
// of groups with 1,000 members, and what serves them.
func scraped(tb testing.TB) http.Handler {
	tb.Helper()
	a, err := New(Config{ID: "a", Host: "h", ZooKeeper: session.Config{Servers: []string{"127.0.0.1:1"}, Timeout: 10 * time.Second}})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range 100 {
		name := fmt.Sprintf("template-%d", i)
		a.metrics.Rendered(name, "ok")
		a.metrics.Applied(name, time.Millisecond, true)
		a.metrics.Reloaded(name, "ok")
	}
	return a.web.Handler()
}

func scrape(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestMetrics_CostOfAScrape bounds what a scrape does by what can be counted.
func TestMetrics_CostOfAScrape(t *testing.T) {
	h := scraped(t)
	if w := scrape(h); w.Code != http.StatusOK || w.Header().Get("Content-Encoding") != "gzip" || w.Body.Len() > 40<<10 {
		t.Errorf("got %d, %v, %d bytes", w.Code, w.Header(), w.Body.Len())
	}
	if n := testing.AllocsPerRun(10, func() { scrape(h) }); n > 20000 {
		t.Errorf("a scrape makes %.0f allocations", n)
	}
}

// BenchmarkMetrics_Scrape scrapes an agent with 100 templates as Prometheus does.
// Members of groups add no series: a group has the same few, whatever its size.
func BenchmarkMetrics_Scrape(b *testing.B) {
	h := scraped(b)
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		scrape(h)
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
}
