package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// Metrics are the agent's own metrics. The nil Metrics counts nothing.
type Metrics struct {
	renders      *prometheus.CounterVec
	applySeconds *prometheus.HistogramVec
	reloads      *prometheus.CounterVec
	hooks        *prometheus.CounterVec
	conditions   *prometheus.GaugeVec
	settingsOK   prometheus.Gauge
	settingsTime prometheus.Gauge
	settingsHash prometheus.Gauge
	bundleState  *prometheus.GaugeVec
	unitErrors   *prometheus.CounterVec
	info         *prometheus.GaugeVec

	session  *session.Metrics
	config   *config.Metrics
	registry *registry.Metrics
	election *election.Metrics
}

// NewMetrics registers the agent's metrics and those of every package it
// wires.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		renders:      counterVec("render_total", "Executions of a template by result.", "template", "result"),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "zkagent_apply_duration_seconds", Help: "Time from the start of an apply to its end, checks and reload included.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"template"}),
		reloads:      counterVec("reload_total", "Reload commands by result.", "template", "result"),
		hooks:        counterVec("hook_total", "Runs of a hook by result.", "hook", "result"),
		conditions:   gaugeVec("condition_open", "Open conditions by code: 1 for each subject.", "code", "subject"),
		settingsOK:   gauge("settings_last_reload_successful", "Whether the last reload of the settings was successful."),
		settingsTime: gauge("settings_last_reload_success_timestamp_seconds", "When settings were last loaded."),
		settingsHash: gauge("settings_hash", "A number made of the digest of the settings in use."),
		bundleState:  gaugeVec("template_ok", "Whether the newest apply of a template was successful.", "template"),
		unitErrors:   counterVec("unit_errors_total", "Units that ended with an error and were run again.", "kind", "name"),
		info:         gaugeVec("build_info", "The version of the program; always 1.", "version"),
	}
	m.session, m.config = session.NewMetrics(reg), config.NewMetrics(reg)
	m.registry, m.election = registry.NewMetrics(reg), election.NewMetrics(reg)
	reg.MustRegister(m.renders, m.applySeconds, m.reloads, m.hooks, m.conditions, m.settingsOK, m.settingsTime,
		m.settingsHash, m.bundleState, m.unitErrors, m.info)
	return m
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "zkagent_" + name, Help: help}, labels)
}

func gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "zkagent_" + name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "zkagent_" + name, Help: help})
}

func (m *Metrics) rendered(template, result string) {
	if m != nil {
		m.renders.WithLabelValues(template, result).Inc()
	}
}

func (m *Metrics) applied(bundle string, took time.Duration, ok bool) {
	if m == nil {
		return
	}
	m.applySeconds.WithLabelValues(bundle).Observe(took.Seconds())
	m.bundleState.WithLabelValues(bundle).Set(bool01(ok))
}

func (m *Metrics) reload(bundle, result string) {
	if m != nil {
		m.reloads.WithLabelValues(bundle, result).Inc()
	}
}

func (m *Metrics) hook(name, result string) {
	if m != nil {
		m.hooks.WithLabelValues(name, result).Inc()
	}
}

func (m *Metrics) unitError(kind, name string) {
	if m != nil {
		m.unitErrors.WithLabelValues(kind, name).Inc()
	}
}

func (m *Metrics) condition(code, subject string, isOpen bool) {
	switch {
	case m == nil:
	case isOpen:
		m.conditions.WithLabelValues(code, subject).Set(1)
	default:
		m.conditions.DeleteLabelValues(code, subject)
	}
}

// settings records the result of a load; the hash is a hexadecimal digest.
func (m *Metrics) settings(ok bool, hash string) {
	if m == nil {
		return
	}
	m.settingsOK.Set(bool01(ok))
	if !ok {
		return
	}
	m.settingsTime.SetToCurrentTime()
	// 48 bits of the digest fit into a float exactly.
	var n float64
	for i := range min(len(hash), 12) {
		c := hash[i]
		switch {
		case c >= '0' && c <= '9':
			n = n*16 + float64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n*16 + float64(c-'a'+10)
		}
	}
	m.settingsHash.Set(n)
}

func bool01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
