package election

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Term is one period of leadership.
type Term struct {
	// ID numbers the term: the czxid of the leader's znode. It grows from
	// leader to leader and is the fencing token.
	ID      int64
	Path    string           // of the leader's znode
	Session *session.Session // whose znode leads
}

// Guard returns an operation that makes a multi fail when the term is over. The path
// contains a GUID, so it never belongs to another candidate.
func (t Term) Guard() session.Op { return session.CheckOp(t.Path, -1) }

// Held reports whether the lease of the term's session runs. Check it before each act, in
// addition to the context of the term.
func (t Term) Held() bool { return t.Session.Held() }

// Observe follows the leader of the election at path, without being a candidate. It ends
// with ctx or the session, and returns the cause. It calls up at once and on each change
// of the leader. The ID is empty while there is no leader.
func Observe(ctx context.Context, s *session.Session, path, dialect string, up func(view.Leader)) error {
	participants, err := recipe.Candidates(path, dialect, nil)
	if err != nil {
		return fmt.Errorf("observe election: %w", err)
	}
	err = participants.Follow(ctx, s, func(l recipe.Leader) { up(leaderOf("", path, l)) })
	return fmt.Errorf("observe election %s: %w", path, err)
}

// Metrics are the metrics of all candidates of a process. A nil *Metrics counts nothing.
type Metrics struct {
	leader *prometheus.GaugeVec
	terms  *prometheus.CounterVec
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		leader: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "zkagent_leader",
			Help: "Whether this agent leads the election.",
		}, []string{"election"}),
		terms: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zkagent_terms_total",
			Help: "Terms for which this agent has led the election.",
		}, []string{"election"}),
	}
	if reg != nil {
		reg.MustRegister(m.leader, m.terms)
	}
	return m
}

func (m *Metrics) leads(name string, mine bool) {
	if m == nil {
		return
	}
	value := 0.0
	if mine {
		value = 1
	}
	m.leader.WithLabelValues(name).Set(value)
}

func (m *Metrics) elected(name string) {
	if m != nil {
		m.terms.WithLabelValues(name).Inc()
	}
}
