package registry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// place is one group of a registrar: what is known there over sessions.
type place struct {
	r     *Registrar
	group string
	wake  chan struct{} // size 1: something changed that run should look at

	// r.mu guards the fields below.
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
		// Until the checks pass, or an operator decides, the previous settings decide.
		healthy := healthOf(p.r.checks()) == Passing
		p.r.mu.Lock()
		from, wait := p.from, !healthy && p.r.left.IsZero() && !p.r.maint.Active(time.Now())
		p.r.mu.Unlock()
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
func (p *place) publish(m *membership, is keeper.State) {
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
	was := s.Registered
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
	again := s.State == StateRegistered && s.Registered && !was // in another session
	if worst[state] != s.State || s.Since.IsZero() || again {
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

func (p *place) known() string {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.node
}

// Own returns the paths of the znodes that a registrar of this service takes over in
// session s from a previous process. A program deletes what else that process left. Own
// returns a fixed name even if the znode does not exist.
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

// membership is the member of one place in one session. [recipe.Node] keeps the
// znode. The membership decides what the znode should contain, from checks,
// maintenance and leaving. Only the goroutine of the node's Run touches it.
type membership struct {
	*place

	s *session.Session

	id   string
	host string // as registered

	keep  time.Time // how long to keep an adopted znode without a verdict; zero: none was adopted
	found int64     // czxid of the znode that was adopted
	last  want
	shown bool // the node has been registered
}

// newMembership returns the membership. Without a configured id, it makes one of the host's
// and the service's names.
func newMembership(p *place, s *session.Session) (*membership, error) {
	m := &membership{place: p, s: s, id: p.r.cfg.MemberID}
	if m.id != "" {
		return m, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return m, fmt.Errorf("member id: %w", err)
	}
	id := strings.Map(func(c rune) rune {
		if c < 128 && memberID.MatchString(string(c)) {
			return c
		}
		return '-'
	}, host+"-"+p.r.cfg.Name)
	m.id = id[:min(len(id), 128)]
	return m, nil
}

// node returns the [recipe.Node] that keeps the member's znode.
func (m *membership) node(first time.Duration) *recipe.Node {
	c := &m.r.cfg
	name, sequential := c.nodeName(m.id)
	m.r.mu.Lock()
	earlier := slices.Collect(maps.Keys(m.r.earlier))
	m.r.mu.Unlock()
	cfg := recipe.NodeConfig{
		Path: session.JoinPath(m.group, name), Keep: true, ACL: c.ACL,
		Logger: m.r.log.With("service", c.Name),
		Internal: keeper.Config{Earlier: earlier, Control: &keeper.Control{
			Want: m.wanted, Changed: m.changed, Wake: m.wake,
			First: first, Splay: splayOf(m.group+"/"+m.id, c.Splay),
		}},
	}
	if sequential {
		cfg.Internal.Sequence = &keeper.Sequence{Known: m.known()}
	}
	if c.format() == FormatServerSet {
		// Znode names of server sets do not identify the owner; the address does.
		cfg.Internal.Sequence.Mine = func(p string, data []byte) bool {
			member, err := Decode(FormatServerSet, path.Base(p), data)
			return err == nil && member.Host == m.host && member.Port == c.Port
		}
	}
	return recipe.NewNode(cfg)
}

// nodeName returns the name of the znode of a member, and whether ZooKeeper adds a number.
func (c ServiceConfig) nodeName(id string) (string, bool) {
	switch {
	case c.format() == FormatServerSet:
		return serverSetPrefix, true
	case c.format() == FormatNerve, c.format() == FormatTemplate && c.Sequential:
		return id + "_", true
	}
	return id, false
}

// identify determines the address of the member, once per session.
func (m *membership) identify() error {
	if m.host != "" {
		return nil
	}
	host := m.r.cfg.Address
	if host == "" {
		var err error
		if host, err = localAddress(m.s.Context(), m.s.Server()); err != nil {
			return fmt.Errorf("find the local address that reaches %s: %w", m.s.Server(), err)
		}
		if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
			return fmt.Errorf("the address that reaches ZooKeeper is %s, which other hosts cannot use: set the address of the service (it may be %s)", host, host)
		}
	}
	host, err := ParseHost(host)
	if err != nil {
		return err
	}
	m.host = host
	return nil
}

func (m *membership) wanted(state keeper.State) (keeper.Want, error) {
	if state.Owned && state.Adopted && state.Czxid != m.found {
		m.found, m.keep = state.Czxid, time.Now().Add(keepFor(m.r.checkers))
		m.r.mu.Lock()
		m.born, m.everUp = curatorRegistered(state.Data), true
		m.r.risen = time.Time{} // it was up before, so it is warm
		m.r.mu.Unlock()
	}
	w := m.want(time.Now(), m.keep)
	if w.state == StateRegistered || w.state == StateCritical || !w.present {
		m.keep = time.Time{} // decided
	}
	m.last = w
	wanted := keeper.Want{Absent: !w.present, Next: w.next, Now: w.left}
	if err := m.identify(); err != nil || !w.present {
		return wanted, err
	}
	if !state.Owned {
		m.r.mu.Lock()
		m.born = time.Now() // the znode is about to be made
		m.r.mu.Unlock()
	} else if w.state == StateKept {
		wanted.Data = state.Data // until the checks decide: the settings may be new
		return wanted, nil
	}
	reg := m.r.cfg.registration(m.group, m.host, m.id)
	reg.Status, reg.Weight = w.status, w.weight
	m.r.mu.Lock()
	reg.Registered = m.born
	m.r.mu.Unlock()
	data, err := reg.encode(m.r.cfg.format())
	if err != nil {
		return wanted, fmt.Errorf("encode member: %w", err)
	}
	wanted.Data = data
	return wanted, nil
}

func (m *membership) changed(state keeper.State) {
	if state.Owned != m.shown {
		m.shown = state.Owned
		if m.shown {
			m.r.log.Info("member registered", "service", m.r.cfg.Name, "path", state.Path, "czxid", state.Czxid)
		} else {
			m.r.log.Info("member removed", "service", m.r.cfg.Name, "path", m.known())
		}
	}
	switch {
	case errors.Is(state.Blocked, recipe.ErrInTheWay):
		state.Blocked = fmt.Errorf("%s is a persistent znode and no member: delete it, or choose another member_id", state.Path)
	case state.Blocked != nil:
		state.Blocked = fmt.Errorf("%w of another process: waiting until it is gone", state.Blocked)
	}
	m.publish(m, state)
}

// splayOf spreads members over the splay by their names. A member always waits the
// same time, and many members are evenly spread.
func splayOf(name string, splay time.Duration) time.Duration {
	if splay <= 0 {
		return 0
	}
	digest := sha256.Sum256([]byte(name))
	return time.Duration(float64(binary.BigEndian.Uint64(digest[:])>>11) / (1 << 53) * float64(splay))
}

// localAddress returns the local address from which packets to the server go. It
// sends no packet.
func localAddress(ctx context.Context, server string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", server)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", err
	}
	return ParseHost(host)
}
