package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// membership is the member of one registrar in one session. [recipe.Node] keeps the
// znode. The membership decides what the znode should contain, from checks,
// maintenance and leaving. Only the goroutine of the node's Run touches it.
type membership struct {
	r *Registrar
	s *session.Session

	id   string
	host string // as registered

	keep  time.Time // how long to keep an adopted znode without a verdict; zero: none was adopted
	found int64     // czxid of the znode that was adopted
	last  want
	known bool // the node has been registered
}

// newMembership determines the member's id and returns the membership.
func newMembership(r *Registrar, s *session.Session) (*membership, error) {
	id, err := r.memberID()
	return &membership{r: r, s: s, id: id}, err
}

// node returns the [recipe.Node] that keeps the member's znode.
func (m *membership) node(first time.Duration) *recipe.Node {
	c := &m.r.cfg
	cfg := recipe.NodeConfig{
		Path: session.JoinPath(c.Group, m.id), Keep: true, ACL: c.ACL, Former: m.r.formerSessions(),
		Logger: m.r.log.With("service", c.Name),
		Control: &recipe.NodeControl{
			Want: m.want, Changed: m.changed, Wake: m.r.wake,
			First: first, Splay: splayOf(c.Group+"/"+m.id, c.Splay),
		},
	}
	switch {
	case c.format() == FormatServerSet:
		// Znode names of server sets do not identify the owner; the address does.
		cfg.Path = session.JoinPath(c.Group, serverSetPrefix)
		cfg.Sequence = &recipe.NodeSequence{Known: m.r.known(), Mine: m.hasAddress}
	case c.format() == FormatNerve, c.format() == FormatTemplate && c.Sequential:
		cfg.Path += "_"
		cfg.Sequence = &recipe.NodeSequence{Known: m.r.known()}
	}
	return recipe.NewNode(cfg)
}

func (m *membership) hasAddress(p string, data []byte) bool {
	member, err := Decode(FormatServerSet, path.Base(p), data)
	return err == nil && member.Host == m.host && member.Port == m.r.cfg.Port
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

func (m *membership) want(state recipe.NodeState) (recipe.NodeWant, error) {
	if state.Owned && state.Adopted && state.Czxid != m.found {
		m.found, m.keep = state.Czxid, time.Now().Add(keepFor(m.r.checkers))
		m.r.adopt(state.Data)
	}
	w := m.r.want(time.Now(), m.keep)
	if w.state == StateRegistered || w.state == StateCritical || !w.present {
		m.keep = time.Time{} // decided
	}
	m.last = w
	wanted := recipe.NodeWant{Absent: !w.present, Next: w.next, Now: w.left}
	if err := m.identify(); err != nil || !w.present {
		return wanted, err
	}
	if !state.Owned {
		m.r.born0(time.Now())
	} else if w.status == "" { // the checks have no verdict yet: keep the status as found
		if member, err := Decode(m.r.cfg.format(), path.Base(state.Path), state.Data); err == nil {
			w.status = member.Status
		}
	}
	data, err := m.r.data(w, m.host, m.id)
	if err != nil {
		return wanted, fmt.Errorf("encode member: %w", err)
	}
	wanted.Data = data
	return wanted, nil
}

func (m *membership) changed(state recipe.NodeState) {
	if state.Owned != m.known {
		m.known = state.Owned
		if m.known {
			m.r.log.Info("member registered", "service", m.r.cfg.Name, "path", state.Path, "czxid", state.Czxid)
		} else {
			m.r.log.Info("member removed", "service", m.r.cfg.Name, "path", m.r.known())
		}
	}
	switch {
	case errors.Is(state.Blocked, recipe.ErrInTheWay):
		state.Blocked = fmt.Errorf("%s is a persistent znode and no member: delete it, or choose another member_id", state.Path)
	case state.Blocked != nil:
		state.Blocked = fmt.Errorf("%w of another process: waiting until it is gone", state.Blocked)
	}
	m.r.publish(m, state)
}

// formerSessions returns the ids of our own sessions, those of this process and of
// the former one.
func (r *Registrar) formerSessions() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.former))
}

// Own returns the path of the znode that a registrar of this service takes over in
// session s from a previous process, or "" if the session owns none. It returns a
// fixed name even if the znode does not exist.
func (c ServiceConfig) Own(ctx context.Context, s *session.Session) (string, error) {
	m, err := newMembership(NewRegistrar(c), s)
	if err == nil {
		err = m.identify()
	}
	if err != nil {
		return "", err
	}
	return m.node(0).Find(ctx, s)
}

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
		select {
		case <-r.joined:
		default:
			close(r.joined)
		}
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

func (r *Registrar) known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node
}

// splayOf spreads members over the splay by their names. A member always waits the
// same time, and many members are evenly spread.
func splayOf(name string, splay time.Duration) time.Duration {
	if splay <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	// The upper bits of FNV differ little between names that differ in their
	// last byte only, so they are mixed once more.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return time.Duration(float64(x>>11) / (1 << 53) * float64(splay))
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
