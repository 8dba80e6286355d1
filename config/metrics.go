package config

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the events of watchers. A nil *Metrics counts nothing.
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
	m := newMetrics()
	reg.MustRegister(m.generation, m.changed, m.keys, m.torn, m.deltas, m.failed)
	return m
}

func newMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "zkagent_tree_" + name, Help: help}, []string{"tree"})
	}
	return &Metrics{
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
			Help: "Differences in ready that did not lead to the published version, so that the agent read it whole.",
		}, []string{"tree"}),
	}
}
