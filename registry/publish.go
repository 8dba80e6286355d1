package registry

import (
	"net"
	"strconv"
	"time"
)

// What the loop of a membership tells its registrar.

// publish makes the present state visible, and ends leaving when it is done.
func (r *Registrar) publish(m *membership, w want) {
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.status
	state := w.state
	switch {
	case !m.mine && w.present && m.blocked != nil:
		state = StateBlocked
	case !m.mine && w.present:
		state = StateWaiting
	}
	if state != s.State || s.Since.IsZero() {
		s.State, s.Since = state, time.Now()
	}
	s.Registered, s.Weight = m.mine, w.weight
	s.Node, r.node = "", m.path
	if m.mine {
		s.Node = m.path
		s.Address = net.JoinHostPort(m.host, strconv.Itoa(r.cfg.Port))
		r.everUp = true
	}
	if m.blocked != nil {
		s.Error = m.blocked.Error()
	} else if m.looked {
		s.Error = ""
	}
	r.cfg.Metrics.service(r.cfg.Name, m.mine)
	if w.left && !m.mine && m.looked {
		r.finishLeaving()
	}
}

// fail shows an error until it is overcome.
func (r *Registrar) fail(err error) {
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Error = err.Error()
}

// adopt takes over a znode that was found, with what only its data tells.
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

// known is the path that the member had.
func (r *Registrar) known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node
}

// isFormer reports whether the session was one of ours.
func (r *Registrar) isFormer(id int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.former[id]
}
