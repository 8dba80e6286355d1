package session

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/jute"
)

// Metrics counts what sessions do.
type Metrics struct {
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

// NewMetrics makes the metrics of sessions and registers them with reg, which may
// be nil. It panics when they are already registered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "zkagent_session_state", Help: "1 for the state that the ZooKeeper session is in, 0 for the others.",
		}, []string{"state"}),
		expirations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "zkagent_session_expirations_total", Help: "ZooKeeper sessions lost to expiry.",
		}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "zkagent_session_reconnects_total", Help: "Connections made to a ZooKeeper server after the first of a session.",
		}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "zkagent_zk_request_duration_seconds", Help: "Time from handing a request to the connection to its reply.",
			Buckets: []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"op"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zkagent_zk_requests_lost_total", Help: "Requests whose connection ended before their reply came.",
		}, []string{"op"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "zkagent_zk_requests_in_flight", Help: "Requests waiting for their reply.",
		}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zkagent_zk_bytes_total", Help: "Bytes exchanged with ZooKeeper servers.",
		}, []string{"direction"}),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "zkagent_session_watches", Help: "Watches set and waited for.",
		}),
		notRenewed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "zkagent_session_renewal_failures_total", Help: "Tries to renew the identity to ZooKeeper, such as a Kerberos ticket, that failed.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.state, m.expirations, m.reconnects, m.requests, m.lost, m.inFlight, m.bytes, m.watches, m.notRenewed)
	}
	return m
}

func (m *Metrics) setState(s State) {
	for o, name := range stateNames {
		v := 0.0
		if State(o) == s {
			v = 1
		}
		m.state.WithLabelValues(name).Set(v)
	}
}

func (m *Metrics) finished(op int32, took time.Duration, lost bool) {
	m.inFlight.Dec()
	if lost {
		m.lost.WithLabelValues(jute.OpName(op)).Inc()
		return
	}
	m.requests.WithLabelValues(jute.OpName(op)).Observe(took.Seconds())
}
