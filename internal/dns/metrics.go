package dns

import (
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count the queries.
type Metrics struct {
	queries *prometheus.CounterVec
}

// NewMetrics registers the metrics of the DNS listener.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{queries: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "zkagent_dns_queries_total",
		Help: "DNS queries answered, by group (empty: no group) and response code.",
	}, []string{"group", "rcode"})}
	reg.MustRegister(m.queries)
	return m
}

func (m *Metrics) count(group string, rcode int) {
	name, ok := dns.RcodeToString[rcode]
	if !ok {
		name = "other"
	}
	m.queries.WithLabelValues(group, name).Inc()
}
