package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// oneSource is a host with one template of one config.
const oneSource = `
agent {
  id        = "host-one"
  state_dir = "%[1]s/state"
}
admin { socket = "%[1]s/sock" }
http { listen = "%[3]s" }
zookeeper { servers = ["%[2]s"] }
config "one" {
  path   = "/config/one"
  layout = "%[4]s"
}
template "one" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/one.conf"
}
`

// sourceFaults are ways to lose a config that agents follow.
var sourceFaults = []struct {
	name, layout, code string
	begin              func(x *trials)
}{
	{"deleted whole", config.LayoutVersioned, "source-gone", func(x *trials) { x.removeTree("/config/one") }},
	{"deleted whole", config.LayoutFlat, "source-gone", func(x *trials) { x.removeTree("/config/one") }},
	{"deleted whole", config.LayoutPlain, "source-gone", func(x *trials) { x.removeTree("/config/one") }},
	{"deleted whole", config.LayoutAuto, "source-gone", func(x *trials) { x.removeTree("/config/one") }},
	{"without ready", config.LayoutVersioned, "source-gone", func(x *trials) { x.removeTree("/config/one/ready") }},
	{"another digest", config.LayoutVersioned, "source-unusable", func(x *trials) { x.ready(`"digest": ?"....`, `"digest":"0123`) }},
	{"ready cut off", config.LayoutVersioned, "source-unusable", func(x *trials) { x.ready(`.{20}$`, "") }},
	{"ready emptied", config.LayoutVersioned, "source-unusable", func(x *trials) { x.ready(`(?s).*`, "") }},
	{"ready emptied", config.LayoutAuto, "source-unusable", func(x *trials) { x.ready(`(?s).*`, "") }},
	{"objects deleted", config.LayoutAuto, "source-gone", func(x *trials) { x.removeTree("/config/one/objects") }},
	{"ready cut off", config.LayoutAuto, "source-unusable", func(x *trials) { x.ready(`.{20}$`, "") }},
}

// removeTree removes a znode and all below it, as a foreign tool does.
func (x *trials) removeTree(path string) {
	x.t.Helper()
	names, err := x.server.Children(path)
	x.must(err)
	for _, name := range names {
		x.removeTree(path + "/" + name)
	}
	x.must(x.server.Delete(path))
}

// ready changes what the znode ready says.
func (x *trials) ready(from, to string) {
	x.t.Helper()
	data, _, err := x.s.Get(x.t.Context(), "/config/one/ready")
	x.must(err)
	changed := regexp.MustCompile(from).ReplaceAll(data, []byte(to))
	if string(changed) == string(data) {
		x.t.Fatalf("ready is %s", data)
	}
	x.must(x.server.Set("/config/one/ready", changed))
}

// TestTruth_Sources: a config that was in use and is deleted, half deleted or damaged is a
// condition in every view and an alert, and the last file stays.
func TestTruth_Sources(t *testing.T) {
	t.Parallel()
	for i, c := range sourceFaults {
		t.Run(c.name+" "+c.layout, func(t *testing.T) {
			t.Parallel()
			if i > 0 {
				testhelp.OnlyAll(t, "each has an agent of its own")
			}
			x := &trials{truth: newTruthServer(t)}
			keys := map[string][]byte{"word": []byte("here")}
			layout := c.layout
			if layout == config.LayoutPlain {
				layout = config.LayoutFlat
			}
			_, err := fleet.Publish(t.Context(), x.s, fleet.PublishConfig{Path: "/config/one", Keys: keys, Layout: layout})
			x.must(err)
			x.settings(fmt.Sprintf(oneSource, x.dir, x.addr, x.http, c.layout))
			x.start()
			x.agreeOn(fleet.OK, "nothing", true)
			c.begin(x)
			const subject = "config one"
			x.see(trial{code: c.code, subject: subject})
			x.alerted("ZkagentSource", c.code, subject)
			name := condition.Condition{Code: c.code, Subject: subject}.Name()
			if _, text := x.run("config", "list"); !regexp.MustCompile(`one +(gone|damaged|v1|flat) `).MatchString(text) {
				t.Errorf("the list of configs says\n%s", text)
			}
			if _, text := x.run("doctor"); !strings.Contains(text, name) {
				t.Errorf("doctor does not show %q:\n%s", name, text)
			}
			if data, err := os.ReadFile(x.file("one.conf")); string(data) != "here\n" {
				t.Errorf("the last file is %q, %v", data, err)
			}
		})
	}
}

// TestTruth_RolloutHalted: a rollout that has halted is a condition in every view and an alert,
// until an operator has dealt with it.
func TestTruth_RolloutHalted(t *testing.T) {
	t.Parallel()
	x := &trials{truth: newTruthServer(t)}
	x.change("word")
	x.settings(fmt.Sprintf(oneSource, x.dir, x.addr, x.http, config.LayoutVersioned))
	x.start()
	x.agreeOn(fleet.OK, "nothing", true)
	mute := fleet.SubscriptionPath("/config/one", "host-two")
	x.must(x.s.CreateParents(t.Context(), mute))
	_, _, err := x.s.Create(t.Context(), mute, nil, session.Ephemeral)
	x.must(err)
	cfg := fleet.PublishConfig{Path: "/config/one", Keys: map[string][]byte{"word": []byte("new")}}
	p, err := fleet.PublishByRollout(t.Context(), x.s, cfg, fleet.RolloutConfig{Strategy: fleet.Strategy{
		Order: []string{"host-one"}, Bake: fleet.Duration(time.Hour), VoteTimeout: fleet.Duration(time.Second), Absent: fleet.AbsentSkip,
	}})
	x.must(err)
	x.await("the canary", func() bool { data, _ := os.ReadFile(x.file("one.conf")); return string(data) == "new\n" })
	x.must(fleet.Abort(t.Context(), x.s, "/config/one", p.Rollout, fleet.Order{By: "ann", Reason: "7 % errors"}))
	const code, subject = "rollout-halted", "one"
	x.see(trial{code: code, subject: subject})
	x.alerted("ZkagentRolloutHalted", code, subject)
	if _, text := x.run("status", "-o", "wide"); !strings.Contains(text, "version 2 is halted: 7 % errors") {
		t.Errorf("the status names no reason:\n%s", text)
	}
	x.must(x.server.Delete(mute))
	x.ok("rollout", "undo", "one")
	x.agreeOn(fleet.OK, "nothing any more", true)
}

// alerted fails the test unless the alert rules, with the agent's metrics as they are now,
// fire for the condition within two minutes, and once.
func (x *trials) alerted(alert, code, subject string) {
	x.t.Helper()
	rules, err := filepath.Abs("../../packaging/alerts.yml")
	x.must(err)
	var series []map[string]string
	for line := range strings.Lines(x.get("/metrics")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(line, "zkagent_condition{") {
			series = append(series, map[string]string{"series": name + `,instance="host-one"}`, "values": value + "x20"})
		}
	}
	ask := func(at, name string, samples ...any) map[string]any {
		expr := fmt.Sprintf("count by (subject) (ALERTS{alertname=%q, alertstate=\"firing\"})", name)
		return map[string]any{"eval_time": at, "expr": expr, "exp_samples": samples}
	}
	fires := map[string]any{"labels": fmt.Sprintf("{subject=%q}", subject), "value": 1}
	rest := []any{ask("0m", alert), ask("2m", alert, fires), ask("20m", "ZkagentCondition")}
	test, err := json.Marshal(map[string]any{ // YAML is a superset of JSON
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{"interval": "1m", "input_series": series, "promql_expr_test": rest}},
	})
	x.must(err)
	x.must(os.WriteFile(x.file("alerts_test.yml"), test, 0o600))
	out, err := exec.CommandContext(x.t.Context(), "promtool", "test", "rules", x.file("alerts_test.yml")).CombinedOutput()
	if err != nil || !slices.ContainsFunc(series, func(s map[string]string) bool { return strings.Contains(s["series"], code) }) {
		x.t.Errorf("promtool (apt-get install prometheus): %v\n%s\n%s", err, out, test)
	}
}
