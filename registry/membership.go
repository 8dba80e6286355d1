package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
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

// hasAddress reports whether a member of a server set has our address.
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

// want returns the wanted state of the znode.
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

// changed passes the new state of the znode to the registrar.
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
