package agent

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/prom"
	"github.com/zkagent/zkagent/registry"
)

type metrics struct {
	reg          *prometheus.Registry // where New registered them
	renders      *prometheus.CounterVec
	applySeconds *prometheus.HistogramVec
	reloads      *prometheus.CounterVec
	hooks        *prometheus.CounterVec
	conditions   *prometheus.GaugeVec
	conditionsAt *prometheus.GaugeVec
	execRunning  *prometheus.GaugeVec
	execStarts   *prometheus.CounterVec
	execExit     *prometheus.GaugeVec
	settingsOK   prometheus.Gauge
	settingsTime prometheus.Gauge
	settingsHash prometheus.Gauge
	bundleState  *prometheus.GaugeVec
	previewed    *prometheus.GaugeVec
	unitErrors   *prometheus.CounterVec
	info         *prometheus.GaugeVec
	recordNow    func() fleet.Record // asked at each scrape; nil: not known yet

	of struct { // the packages that the agent wires
		session  *prom.Session
		config   *config.Metrics
		registry *registry.Metrics
		election *prom.Election
		dns      *dns.Metrics
	}
}

// DescribeMetrics registers every metric of the agent, for the page of the
// reference.
func DescribeMetrics(reg prometheus.Registerer) { newMetrics(reg) }

// newMetrics registers the agent's metrics and those of every package it
// wires.
func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		renders:      auto.NewCounterVec(prometheus.CounterOpts(opts("render_total", "Executions of a template by result.")), []string{"template", "result"}),
		applySeconds: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "zkagent_apply_duration_seconds", Help: "Time from the start of an apply to its end, checks and reload included.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"template"}),
		reloads:      auto.NewCounterVec(prometheus.CounterOpts(opts("reload_total", "Reload commands by result.")), []string{"template", "result"}),
		hooks:        auto.NewCounterVec(prometheus.CounterOpts(opts("hook_total", "Runs of a hook by result.")), []string{"hook", "result"}),
		conditions:   auto.NewGaugeVec(opts("condition", "Open conditions: 1 for each that is open."), []string{"code", "subject"}),
		conditionsAt: auto.NewGaugeVec(opts("condition_since_timestamp_seconds", "When an open condition began."), []string{"code", "subject"}),
		execRunning:  auto.NewGaugeVec(opts("exec_running", "Whether a supervised program runs."), []string{"exec"}),
		execStarts:   auto.NewCounterVec(prometheus.CounterOpts(opts("exec_starts_total", "Starts of a supervised program.")), []string{"exec"}),
		execExit:     auto.NewGaugeVec(opts("exec_last_exit_code", "Exit code of the latest end of a supervised program."), []string{"exec"}),
		settingsOK:   auto.NewGauge(opts("settings_last_reload_successful", "Whether the last reload of the settings was successful.")),
		settingsTime: auto.NewGauge(opts("settings_last_reload_success_timestamp_seconds", "When settings were last loaded.")),
		settingsHash: auto.NewGauge(opts("settings_hash", "A number made of the digest of the settings in use.")),
		bundleState:  auto.NewGaugeVec(opts("template_ok", "Whether the latest apply of a template was successful."), []string{"template"}),
		previewed:    auto.NewGaugeVec(opts("template_check_previewed", "Whether the check of a template runs before the swap, on the staged files or in a preview."), []string{"template"}),
		unitErrors:   auto.NewCounterVec(prometheus.CounterOpts(opts("unit_errors_total", "Units that ended with an error and were run again.")), []string{"kind", "name"}),
		info:         auto.NewGaugeVec(opts("build_info", "The version of the program; always 1."), []string{"version"}),
	}
	m.of.session, m.of.config = prom.NewSession(reg), config.NewMetrics(reg)
	m.of.registry, m.of.election = registry.NewMetrics(reg), prom.NewElection(reg)
	m.of.dns = dns.NewMetrics(reg)
	reg.MustRegister(recordMetrics{m})
	return m
}

// recordMetrics says at each scrape what the host's record says, so that they agree.
type recordMetrics struct{ m *metrics }

var (
	healthDesc = prometheus.NewDesc("zkagent_health", "The health of the host: 1 for the word that holds now.", []string{"health"}, nil)
	configDesc = prometheus.NewDesc("zkagent_config_version",
		"Version of a versioned config: the latest that this host knows, also one that it refused, and the one that it has accepted.", []string{"config", "stage"}, nil)
	inUseDesc = prometheus.NewDesc("zkagent_template_config_version",
		"Version in use by the files of a template, of the first config that it reads.", []string{"template"}, nil)
)

// Describe implements prometheus.Collector.
func (r recordMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- healthDesc
	descs <- configDesc
	descs <- inUseDesc
}

// Collect implements prometheus.Collector.
func (r recordMetrics) Collect(metrics chan<- prometheus.Metric) {
	var now fleet.Record
	if r.m.recordNow != nil {
		now = r.m.recordNow()
	}
	send := func(desc *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, h := range fleet.Healths {
		send(healthDesc, bool01(now.Health == h), string(h))
	}
	for name, use := range now.Configs {
		send(configDesc, float64(use.Known), name, "known")
		send(configDesc, float64(use.Accepted), name, "accepted")
	}
	for name := range now.Files {
		if _, version := now.File(name); version != 0 {
			send(inUseDesc, float64(version), name)
		}
	}
}

func opts(name, help string) prometheus.GaugeOpts {
	return prometheus.GaugeOpts{Name: "zkagent_" + name, Help: help}
}

// Rendered implements apply.Observer.
func (m *metrics) Rendered(template, result string) {
	m.renders.WithLabelValues(template, result).Inc()
}

// Applied implements apply.Observer.
func (m *metrics) Applied(bundle string, took time.Duration, ok bool) {
	m.applySeconds.WithLabelValues(bundle).Observe(took.Seconds())
	m.bundleState.WithLabelValues(bundle).Set(bool01(ok))
}

// Reloaded implements apply.Observer.
func (m *metrics) Reloaded(bundle, result string) {
	m.reloads.WithLabelValues(bundle, result).Inc()
}

func (m *metrics) condition(c condition.Condition, isOpen bool) {
	if !isOpen {
		m.conditions.DeleteLabelValues(c.Code, c.Subject)
		m.conditionsAt.DeleteLabelValues(c.Code, c.Subject)
		return
	}
	m.conditions.WithLabelValues(c.Code, c.Subject).Set(1)
	m.conditionsAt.WithLabelValues(c.Code, c.Subject).Set(float64(c.Since.UnixMilli()) / 1000)
}

func (m *metrics) exec(st *show.ExecStatus) {
	m.execRunning.WithLabelValues(st.Name).Set(bool01(st.State == "running"))
	switch st.State {
	case "running":
		m.execStarts.WithLabelValues(st.Name).Inc()
	case "exited":
		m.execExit.WithLabelValues(st.Name).Set(float64(st.Code))
	}
}

func (m *metrics) retain(previous, cfg *Config) {
	if previous == nil {
		return
	}
	for _, b := range previous.Bundles {
		if !hasBundle(cfg, b.Name) {
			forgetLabel("template", b.Name, m.renders, m.applySeconds, m.reloads, m.bundleState, m.previewed)
		}
	}
	for _, h := range previous.Hooks {
		if !slices.ContainsFunc(cfg.Hooks, func(o hook.Config) bool { return o.Name == h.Name }) {
			forgetLabel("hook", h.Name, m.hooks)
		}
	}
	for _, e := range previous.Execs {
		if !slices.ContainsFunc(cfg.Execs, func(o ExecConfig) bool { return o.Name == e.Name }) {
			forgetLabel("exec", e.Name, m.execRunning, m.execStarts, m.execExit)
		}
	}
}

func forgetLabel(label, value string, list ...interface{ DeletePartialMatch(prometheus.Labels) int }) {
	for _, v := range list {
		v.DeletePartialMatch(prometheus.Labels{label: value})
	}
}

// settings records the result of a load; the hash is a hexadecimal digest.
func (m *metrics) settings(ok bool, hash string) {
	m.settingsOK.Set(bool01(ok))
	if !ok {
		return
	}
	m.settingsTime.SetToCurrentTime()
	n, _ := strconv.ParseUint(hash[:min(len(hash), 12)], 16, 64) // 48 bits of the digest fit into a float exactly.
	m.settingsHash.Set(float64(n))
}

func bool01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
