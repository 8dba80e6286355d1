package agent

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/show"
)

// metricNames are the names of all metrics, whether they have values or not.
type metricNames map[string]bool

var descName = regexp.MustCompile(`fqName: "([^"]*)"`)

func (n metricNames) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 64)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		n[descName.FindStringSubmatch(d.String())[1]] = true
	}
	return nil
}

func (n metricNames) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		_ = n.Register(c)
	}
}

func (n metricNames) Unregister(prometheus.Collector) bool { return false }

func allMetrics() metricNames {
	n := metricNames{}
	newMetrics(n)
	return n
}

var metricUse = regexp.MustCompile(`\bzkagent_[a-z_]+`)

// known fails the test for metrics in a text that the agent does not have.
func (n metricNames) known(t *testing.T, text string) {
	t.Helper()
	for _, use := range metricUse.FindAllString(text, -1) {
		if !n[use] && !n[strings.TrimSuffix(use, "_bucket")] {
			t.Errorf("there is no metric %s", use)
		}
	}
}

func TestMetrics_Documented(t *testing.T) {
	have := allMetrics()
	for _, want := range []string{
		"session_state", "session_expirations_total", "zk_request_duration_seconds", "tree_generation_timestamp_seconds",
		"tree_torn_reads_total", "group_members", "check_state", "registered", "leader", "render_total", "apply_duration_seconds",
		"hook_total", "settings_last_reload_successful", "settings_last_reload_success_timestamp_seconds", "settings_hash",
		"condition", "condition_since_timestamp_seconds", "exec_running", "exec_starts_total", "exec_last_exit_code",
	} {
		if !have["zkagent_"+want] {
			t.Errorf("the metric zkagent_%s is missing", want)
		}
	}
}

// TestMetrics_Lint gives the agent's own metrics values and looks at their
// names and helps.
func TestMetrics_Lint(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.Rendered("a", "ok")
	m.Applied("a", 1, true)
	m.Reloaded("a", "ok")
	m.hooks.WithLabelValues("a", "done").Inc()
	m.condition(condition.Condition{Code: "a", Subject: "b"}, true)
	m.unitErrors.WithLabelValues("group", "a").Inc()
	m.settings(true, "abc")
	m.exec(&show.ExecStatus{Name: "a", State: "running"})
	m.exec(&show.ExecStatus{Name: "a", State: "exited", Code: 3})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
	if n := series(t, reg, "zkagent_condition", "zkagent_condition_since_timestamp_seconds", "zkagent_exec_last_exit_code"); n != 3 {
		t.Errorf("got %d series, want 3", n)
	}
	m.condition(condition.Condition{Code: "a", Subject: "b"}, false)
	m.retain(&Config{Bundles: []apply.Config{{Name: "a"}}, Hooks: []hook.Config{{Name: "a"}}, Execs: []ExecConfig{{Name: "a"}}}, &Config{})
	if n := series(t, reg, "zkagent_condition", "zkagent_render_total", "zkagent_hook_total", "zkagent_exec_running"); n != 0 {
		t.Errorf("%d metrics of what is gone are left", n)
	}
}

// series counts the series of the metrics.
func series(t *testing.T, reg *prometheus.Registry, names ...string) int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		if slices.Contains(names, f.GetName()) {
			n += len(f.GetMetric())
		}
	}
	return n
}

// TestAlerts gives the rules to promtool.
func TestAlerts(t *testing.T) {
	path := filepath.Join("..", "packaging", "alerts.yml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	allMetrics().known(t, string(data))
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", path).CombinedOutput()
	if err != nil {
		t.Errorf("promtool (apt-get install prometheus): %v\n%s", err, out)
	}
}

// TestDashboard gives every query of the dashboard to promtool.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "packaging", "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	allMetrics().known(t, string(data))
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %q: the id is taken, or there is no query", p.Title)
		}
		ids[p.ID] = true
		for i, q := range p.Targets {
			// Grafana fills in its variables before Prometheus sees the query.
			text := strings.ReplaceAll(q.Expr, "$__rate_interval", "5m")
			rules += "  - record: dashboard:" + string(rune('a'+p.ID)) + string(rune('a'+i)) + "\n    expr: '" + text + "'\n"
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", file).CombinedOutput()
	if err != nil || len(d.Panels) < 10 {
		t.Errorf("promtool: %v\n%s\n%s", err, out, rules)
	}
}
