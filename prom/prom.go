// Package prom counts the work of sessions and candidates in metrics of Prometheus. It
// is a separate package, so that a program without Prometheus does not contain it.
package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/zkagent/zkagent/session"
)

// Session has the metrics of sessions; several managers may share it. It implements
// [session.Metrics].
type Session struct {
	state       *prometheus.GaugeVec
	expirations prometheus.Counter
	reconnects  prometheus.Counter
	requests    *prometheus.HistogramVec
	lost        *prometheus.CounterVec
	inFlight    prometheus.Gauge
	bytes       *prometheus.CounterVec
	watches     prometheus.Gauge
	notRenewed  prometheus.Counter
}

// NewSession makes the metrics of sessions and registers them with reg, which may
// be nil. It panics when they are already registered.
func NewSession(reg prometheus.Registerer) *Session {
	f := promauto.With(reg)
	return &Session{
		state: f.NewGaugeVec(gauge("session_state",
			"1 for the state that the ZooKeeper session is in, 0 for the others."), []string{"state"}),
		expirations: f.NewCounter(counter("session_expirations_total", "ZooKeeper sessions lost to expiry.")),
		reconnects:  f.NewCounter(counter("session_reconnects_total", "Connections made to a ZooKeeper server after the first of a session.")),
		requests: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "zkagent_zk_request_duration_seconds", Help: "Time from handing a request to the connection to its reply.",
			Buckets: []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"op"}),
		lost:     f.NewCounterVec(counter("zk_requests_lost_total", "Requests whose connection ended before their reply came."), []string{"op"}),
		inFlight: f.NewGauge(gauge("zk_requests_in_flight", "Requests waiting for their reply.")),
		bytes:    f.NewCounterVec(counter("zk_bytes_total", "Bytes exchanged with ZooKeeper servers."), []string{"direction"}),
		watches:  f.NewGauge(gauge("session_watches", "Watches set and waited for.")),
		notRenewed: f.NewCounter(counter("session_renewal_failures_total",
			"Tries to renew the identity to ZooKeeper, such as a Kerberos ticket, that failed.")),
	}
}

func gauge(name, help string) prometheus.GaugeOpts {
	return prometheus.GaugeOpts{Name: "zkagent_" + name, Help: help}
}

func counter(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Name: "zkagent_" + name, Help: help}
}

// State implements [session.Metrics].
func (m *Session) State(now session.State) {
	for s := session.Connecting; s <= session.ReadOnly; s++ {
		m.state.WithLabelValues(s.String()).Set(number(s == now))
	}
}

// Expired implements [session.Metrics].
func (m *Session) Expired() { m.expirations.Inc() }

// Reconnected implements [session.Metrics].
func (m *Session) Reconnected() { m.reconnects.Inc() }

// RenewalFailed implements [session.Metrics].
func (m *Session) RenewalFailed() { m.notRenewed.Inc() }

// Sent implements [session.Metrics].
func (m *Session) Sent() { m.inFlight.Inc() }

// Done implements [session.Metrics].
func (m *Session) Done(op string, took time.Duration, lost bool) {
	m.inFlight.Dec()
	if lost {
		m.lost.WithLabelValues(op).Inc()
		return
	}
	m.requests.WithLabelValues(op).Observe(took.Seconds())
}

// Bytes implements [session.Metrics].
func (m *Session) Bytes(written bool, n int) {
	direction := "in"
	if written {
		direction = "out"
	}
	m.bytes.WithLabelValues(direction).Add(float64(n))
}

// Watches implements [session.Metrics].
func (m *Session) Watches(delta int) { m.watches.Add(float64(delta)) }

// Election has the metrics of all candidates of a process. It implements
// [election.Metrics].
type Election struct {
	leader *prometheus.GaugeVec
	terms  *prometheus.CounterVec
}

// NewElection makes the metrics of candidates and registers them with reg, which may
// be nil. It panics when they are already registered.
func NewElection(reg prometheus.Registerer) *Election {
	f := promauto.With(reg)
	return &Election{
		leader: f.NewGaugeVec(gauge("leader", "Whether this agent leads the election."), []string{"election"}),
		terms:  f.NewCounterVec(counter("terms_total", "Terms that this agent has led the election."), []string{"election"}),
	}
}

// Leads implements [election.Metrics].
func (m *Election) Leads(name string, mine bool) {
	m.leader.WithLabelValues(name).Set(number(mine))
}

// Elected implements [election.Metrics].
func (m *Election) Elected(name string) { m.terms.WithLabelValues(name).Inc() }

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
