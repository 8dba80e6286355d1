package agent

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// usage is what this agent uses of a config tree.
type usage struct {
	version int64
	state   string
	err     error
}

// report publishes what is in use. Of a host in maintenance that comes
// first: publishers do not wait for it.
func (m *configTree) report(version int64, state string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = usage{version, state, err}
	m.announce()
}

// announce passes on what is in use. m.mu is held, so that an older state never follows
// a newer one.
func (m *configTree) announce() {
	state, err := m.last.state, m.last.err
	if reason, _ := m.agent.hostMaint.Reason(); reason != "" {
		state, err = fleet.StateMaintenance, errors.New(reason)
	}
	m.subscriber.Report(m.last.version, state, err)
}

// announceMaintenance keeps the subscription in step with the maintenance of the
// host until ctx or the session ends.
func (m *configTree) announceMaintenance(ctx context.Context, s *session.Session) error {
	for {
		_, changed := m.agent.hostMaint.Reason()
		m.mu.Lock()
		if m.last.state == "" {
			m.last.state = fleet.StateOK
		}
		m.announce()
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}
