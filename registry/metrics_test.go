package registry

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		reg := prometheus.NewRegistry()
		met := NewMetrics(reg)
		var h health
		c := webService(&h)
		c.Metrics = met
		m := run(t, memConfig(srv), NewRegistrar(c))
		defer m.stop()
		gc := webGroup()
		gc.Metrics = met
		g := run(t, memConfig(srv), NewGroup(gc))
		defer g.stop()
		eventually(t, time.Minute, "registered", g.shows(8080))
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				text := f.GetName()
				for _, l := range m.GetLabel() {
					text += " " + l.GetName() + "=" + l.GetValue()
				}
				if m.GetGauge().GetValue() == 1 {
					got = append(got, text)
				}
			}
		}
		want := "zkagent_check_state check=exec service=web, zkagent_group_members group=web, zkagent_registered service=web"
		if strings.Join(got, ", ") != want {
			t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
		}
	})
}
