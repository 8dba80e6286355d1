package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// place is one group of a registrar: what is known there over sessions.
type place struct {
	r     *Registrar
	group string
	wake  chan struct{} // size 1: something changed that run should look at

	// r.mu guards what follows.
	from       *place    // of previous settings, until its znode is taken over
	node       string    // path of the znode as last known
	born       time.Time // registration time in the znode's data
	everUp     bool      // the member has been registered before: its status may be shown
	state      string    // as in ServiceStatus
	registered bool
	err        error // why it is not in the wanted state
	left       bool  // the member has left, and its znode is gone
	ceded      bool  // the registrar of the next settings has the znode
	stop       func()
	stopped    chan struct{} // closed when run has returned; nil: it has not been called
}

// run keeps the member in the group, until ctx or the session ends or the place is ceded.
func (p *place) run(ctx context.Context, s *session.Session, again bool) error {
	m, err := newMembership(p, s)
	if err != nil || !p.takeOver(ctx, s) {
		return err
	}
	var first time.Duration
	if c := &p.r.cfg; again {
		first = splayOf(p.group+"/"+c.MemberID+"/"+c.Name, c.Splay)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	defer close(stopped)
	p.r.mu.Lock()
	ceded := p.ceded
	p.stop, p.stopped = cancel, stopped
	p.r.mu.Unlock()
	if ceded {
		return nil
	}
	err = m.node(first).Run(ctx, s)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// takeOver waits until there is something to do, or until the member of the previous
// settings has left, and takes over its znode. It returns false when ctx or the session
// ends.
func (p *place) takeOver(ctx context.Context, s *session.Session) bool {
	for {
		from, wait := p.previous()
		switch {
		case from == nil:
			return true
		case wait:
			select {
			case <-p.wake:
				continue
			case <-from.r.gone:
			case <-ctx.Done():
				return false
			case <-s.Done():
				return false
			}
		}
		node, born, everUp := from.cede()
		if m, err := newMembership(from, s); err == nil && m.identify() == nil {
			// It may not know its znode: the create may have lost its reply.
			if found, err := m.node(0).Find(ctx, s); err == nil {
				node = found
			}
		}
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		p.from, p.node, p.born, p.everUp = nil, node, born, everUp
		return true
	}
}

// previous returns the place whose znode is to be taken over (nil: none), and whether the
// previous settings still decide about it: until the checks pass, or an operator decides.
func (p *place) previous() (*place, bool) {
	healthy := healthOf(p.r.checks()) == Passing
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.from, !healthy && p.r.left.IsZero() && !p.r.maint.Active(time.Now())
}

// cede gives up the znode as it is, and returns when nothing here touches it any more: its
// path, when it was registered, and whether it has been.
func (p *place) cede() (string, time.Time, bool) {
	p.r.mu.Lock()
	p.ceded = true
	stop, stopped := p.stop, p.stopped
	p.r.mu.Unlock()
	if stopped != nil {
		stop()
		<-stopped
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.summarize()
	p.r.finishLeaving()
	return p.node, p.born, p.everUp
}

// publish makes the current state visible. It completes leaving once the znode is
// gone.
func (p *place) publish(m *membership, is recipe.NodeState) {
	r := p.r
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := m.last
	switch {
	case !is.Owned && w.present && is.Blocked != nil:
		p.state = StateBlocked
	case !is.Owned && w.present:
		p.state = StateWaiting
	default:
		p.state = w.state
	}
	p.registered, p.node, r.status.Weight = is.Owned, is.Path, w.weight
	if is.Owned {
		r.status.Address = net.JoinHostPort(m.host, strconv.Itoa(r.cfg.Port))
		p.everUp = true
	}
	switch {
	case is.Err != nil:
		p.err = is.Err
	case is.Blocked != nil:
		p.err = is.Blocked
	case is.Known:
		p.err = nil
	}
	p.left = w.left && !is.Owned && is.Known
	r.summarize()
	r.cfg.Metrics.service(r.cfg.Name, r.status.Registered)
	r.finishLeaving()
}

// worst orders the states of a service in several groups: the first one is shown.
var worst = []string{StateBlocked, StateWaiting, StateDraining, StateUnknown, StateCritical, StateMaintenance, StateKept, StateRegistered, StateLeft}

// summarize makes the status of the service from those of its groups. r.mu is held.
func (r *Registrar) summarize() {
	s, state := &r.status, len(worst)
	var errs []error
	s.Registered, s.Nodes = true, nil
	for _, p := range r.places {
		if p.ceded {
			continue
		}
		state = min(state, slices.Index(worst, p.state))
		s.Registered = s.Registered && p.registered
		if p.registered {
			s.Nodes = append(s.Nodes, p.node)
		}
		if p.err != nil && len(r.places) > 1 {
			errs = append(errs, fmt.Errorf("%s: %w", p.group, p.err))
		} else {
			errs = append(errs, p.err)
		}
	}
	if state == len(worst) { // all are ceded
		s.Registered = false
		return
	}
	if worst[state] != s.State || s.Since.IsZero() {
		s.State, s.Since = worst[state], time.Now()
	}
	s.Error = ""
	if err := errors.Join(errs...); err != nil {
		s.Error = err.Error()
	}
	if s.Registered {
		select {
		case <-r.joined:
		default:
			close(r.joined)
		}
	}
}

// adopt takes over a znode that was found, and the state that only its data
// contains.
func (p *place) adopt(data []byte) {
	born := time.Now()
	if ms := curatorRegistered(data); ms > 0 {
		born = time.UnixMilli(ms)
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.born, p.everUp = born, true
	p.r.risen = time.Time{} // it was up before, so it is warm
}

// bornAt sets the registration time of a znode that is about to be made.
func (p *place) bornAt(now time.Time) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.born = now
}

func (p *place) known() string {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.node
}

// Own returns the paths of the znodes that a registrar of this service takes over in
// session s from a previous process. It returns a fixed name even if the znode does not
// exist.
func (c ServiceConfig) Own(ctx context.Context, s *session.Session) ([]string, error) {
	var paths []string
	for _, p := range NewRegistrar(c).places {
		m, err := newMembership(p, s)
		if err == nil {
			err = m.identify()
		}
		if err != nil {
			return nil, err
		}
		found, err := m.node(0).Find(ctx, s)
		if err != nil {
			return nil, err
		}
		paths = append(paths, found)
	}
	return paths, nil
}
