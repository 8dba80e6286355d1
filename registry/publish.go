package registry

import (
	"net"
	"strconv"
	"time"

	"github.com/zkagent/zkagent/recipe"
)

// How the loop of a membership updates its registrar.

// publish makes the current state visible. It completes leaving once the znode is
// gone.
func (r *Registrar) publish(m *membership, is recipe.NodeState) {
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	s, w := &r.status, m.last
	state := w.state
	switch {
	case !is.Owned && w.present && is.Blocked != nil:
		state = StateBlocked
	case !is.Owned && w.present:
		state = StateWaiting
	}
	if state != s.State || s.Since.IsZero() {
		s.State, s.Since = state, time.Now()
	}
	s.Registered, s.Weight = is.Owned, w.weight
	s.Node, r.node = "", is.Path
	if is.Owned {
		s.Node = is.Path
		s.Address = net.JoinHostPort(m.host, strconv.Itoa(r.cfg.Port))
		r.everUp = true
	}
	switch {
	case is.Err != nil:
		s.Error = is.Err.Error()
	case is.Blocked != nil:
		s.Error = is.Blocked.Error()
	case is.Known:
		s.Error = ""
	}
	r.cfg.Metrics.service(r.cfg.Name, is.Owned)
	if w.left && !is.Owned && is.Known {
		r.finishLeaving()
	}
}

// adopt takes over a znode that was found, and the state that only its data
// contains.
func (r *Registrar) adopt(data []byte) {
	born := time.Now()
	if ms := curatorRegistered(data); ms > 0 {
		born = time.UnixMilli(ms)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.born, r.everUp = born, true
	r.risen = time.Time{} // it was up before, so it is warm
}

// born0 sets the registration time of a znode that is about to be made.
func (r *Registrar) born0(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.born = now
}

// known returns the last known path of the member's znode.
func (r *Registrar) known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node
}
