package config

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/view"
)

// Metrics counts what watchers do. A nil *Metrics counts nothing.
type Metrics struct {
	generation *prometheus.GaugeVec
	changed    *prometheus.GaugeVec
	keys       *prometheus.GaugeVec
	torn       *prometheus.CounterVec
	deltas     *prometheus.CounterVec
	failed     *prometheus.GaugeVec
}

// NewMetrics registers the metrics of config trees.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "zkagent_tree_" + name, Help: help}, []string{"tree"})
	}
	m := &Metrics{
		generation: gauge("generation", "Generation of the tree that ready names: a version, or the czxid of ready. A host may still use another one."),
		changed:    gauge("generation_timestamp_seconds", "When the tree that ready names was read."),
		keys:       gauge("keys", "Keys of the tree in use."),
		failed:     gauge("failed", "1 while the latest state of the tree cannot be used."),
		torn: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zkagent_tree_torn_reads_total",
			Help: "Readings that were thrown away because the tree changed meanwhile.",
		}, []string{"tree"}),
		deltas: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zkagent_tree_delta_mismatches_total",
			Help: "Differences in ready that did not make the version of what was held, so that it was read.",
		}, []string{"tree"}),
	}
	reg.MustRegister(m.generation, m.changed, m.keys, m.torn, m.deltas, m.failed)
	return m
}

func (m *Metrics) passed(t *view.Tree) {
	if m == nil {
		return
	}
	m.generation.WithLabelValues(t.Name).Set(float64(t.Generation))
	m.changed.WithLabelValues(t.Name).Set(float64(time.Now().UnixMilli()) / 1000)
	m.keys.WithLabelValues(t.Name).Set(float64(t.Len()))
}

func (m *Metrics) tornRead(name string) {
	if m != nil {
		m.torn.WithLabelValues(name).Inc()
	}
}

func (m *Metrics) badDelta(name string) {
	if m != nil {
		m.deltas.WithLabelValues(name).Inc()
	}
}

func (m *Metrics) setFailed(name string, err error) {
	if m == nil {
		return
	}
	v := 0.0
	if err != nil {
		v = 1
	}
	m.failed.WithLabelValues(name).Set(v)
}
