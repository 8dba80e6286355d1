package agent

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// TestViews_Agree opens every condition of the catalog, one after the other, and
// compares all views of the host: status, the page, the metrics, the monitoring
// check, and the record that the fleet reads.
func TestViews_Agree(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	a := b.start(c)
	a.ready()
	read := map[fleet.Health]bool{}
	views := func(what string, health fleet.Health, code, subject string) {
		t.Helper()
		name := condition.Condition{Code: code, Subject: subject}.Name()
		fault := func(list []fleet.Fault) bool {
			return slices.ContainsFunc(list, func(f fleet.Fault) bool { return f.Code == code && f.Subject == subject })
		}
		if r := a.record(); r.Health != health || fault(r.Faults) != (code != "") {
			t.Errorf("%s: the record is %+v, want %s", what, r, health)
		}
		if !read[health] { // once for each word: writes of a record keep a distance
			read[health] = true
			eventually(t, what+" in ZooKeeper", func() bool {
				hosts, err := fleet.Agents(t.Context(), b.s)
				return err == nil && len(hosts) == 1 && hosts[0].Health == health && fault(hosts[0].Faults) == (code != "") &&
					strings.Contains(hosts[0].Detail, name) && !strings.Contains(hosts[0].Detail, "its words")
			})
		}
		st := a.Status()
		if st.Health != health {
			t.Errorf("%s: the status says %s, want %s", what, st.Health, health)
		}
		want := map[fleet.Health]int{fleet.OK: show.CheckOK, fleet.Degraded: show.CheckWarning, fleet.Failing: show.CheckCritical}[health]
		if got, _, text := st.Check(); got != want || !strings.Contains(text, name) {
			t.Errorf("%s: the check says %d %q, want %d", what, got, text, want)
		}
		_, metrics, _ := httpGet(t, a, http.MethodGet, "/metrics", nil)
		for _, word := range fleet.Healths {
			line := fmt.Sprintf("zkagent_health{health=%q} %d\n", word, map[bool]int{true: 1}[word == health])
			if !strings.Contains(metrics, line) {
				t.Errorf("%s: the metrics do not say %s", what, line)
			}
		}
		if line := fmt.Sprintf("zkagent_condition{code=%q,subject=%q} 1\n", code, subject); strings.Contains(metrics, line) != (code != "") {
			t.Errorf("%s: the metrics say nothing of the condition", what)
		}
		_, page, _ := httpGet(t, a, http.MethodGet, "/", nil)
		pill := regexp.MustCompile(`id="health"[^>]*>` + string(health) + `( · \d+)?<`)
		if !pill.MatchString(page) || strings.Contains(page, `data-key="`+name+`"`) != (code != "") {
			t.Errorf("%s: the page shows\n%s", what, page)
		}
	}
	views("a healthy host", fleet.OK, "", "")
	for _, e := range condition.Kinds() {
		if e == condition.LastGoodDamaged || e == condition.LastGoodNotSaved {
			continue // the agent closes it by itself when it saves the next view
		}
		subject := ""
		if e.Subject != "" {
			subject = "one"
		}
		want := fleet.Degraded
		if e.Failing {
			want = fleet.Failing
		}
		a.conds.Open(e, subject, "its words")
		views(e.Code, want, e.Code, subject)
		a.conds.Close(e, subject)
	}
	delete(read, fleet.OK)
	well := time.Now().Truncate(time.Second)
	views("a host that is well again", fleet.OK, "", "")
	if hosts, err := fleet.Agents(t.Context(), b.s); err != nil || len(hosts) != 1 || show.HostOf(&hosts[0]).From.Before(well) {
		t.Errorf("the fleet says that it is well since %+v, but it is since %s, %v", hosts, well, err)
	}

	if err := a.maint(t.Context(), web.Args{"on": "true", "reason": "disks"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "maintenance in the record", func() bool {
		hosts, err := fleet.Agents(t.Context(), b.s)
		return err == nil && len(hosts) == 1 && hosts[0].Health == fleet.Maintenance && strings.Contains(hosts[0].Detail, "disks")
	})
	if st := a.Status(); st.Health != fleet.Maintenance {
		t.Errorf("the status says %s", st.Health)
	}
}
