package registry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the package's metrics. A nil *Metrics counts nothing.
type Metrics struct {
	members    *prometheus.GaugeVec
	rejected   *prometheus.GaugeVec
	holding    *prometheus.GaugeVec
	flapping   *prometheus.GaugeVec
	checkState *prometheus.GaugeVec
	registered *prometheus.GaugeVec
}

// NewMetrics makes the metrics and registers them with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "zkagent", Name: name, Help: help}, labels)
		r.MustRegister(g)
		return g
	}
	return &Metrics{
		members:    gauge("group_members", "Members of a group as templates see them.", "group"),
		rejected:   gauge("group_rejected", "Children of a group that were not taken as members.", "group"),
		holding:    gauge("group_holding", "Whether the guard keeps members that are gone (1).", "group"),
		flapping:   gauge("group_flapping", "Members of a group that are damped.", "group"),
		checkState: gauge("check_state", "State of a check: 1 passing, 0 critical, -1 not yet known.", "service", "check"),
		registered: gauge("registered", "Whether the service's member is in ZooKeeper (1).", "service"),
	}
}

func (m *Metrics) group(name string, members, rejected, flapping int, holding bool) {
	if m == nil {
		return
	}
	m.members.WithLabelValues(name).Set(float64(members))
	m.rejected.WithLabelValues(name).Set(float64(rejected))
	m.flapping.WithLabelValues(name).Set(float64(flapping))
	m.holding.WithLabelValues(name).Set(boolValue(holding))
}

func (m *Metrics) forget(group string) {
	if m == nil {
		return
	}
	for _, g := range []*prometheus.GaugeVec{m.members, m.rejected, m.flapping, m.holding} {
		g.DeleteLabelValues(group)
	}
}

func (m *Metrics) check(service, check string, v Verdict) {
	if m == nil {
		return
	}
	value := map[Verdict]float64{Passing: 1, Critical: 0, Unknown: -1}[v]
	m.checkState.WithLabelValues(service, check).Set(value)
}

func (m *Metrics) service(name string, registered bool) {
	if m == nil {
		return
	}
	m.registered.WithLabelValues(name).Set(boolValue(registered))
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
