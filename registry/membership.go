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
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

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

// newMembership determines the member's id and returns the membership.
func newMembership(p *place, s *session.Session) (*membership, error) {
	id, err := p.r.memberID()
	return &membership{place: p, s: s, id: id}, err
}

// node returns the [recipe.Node] that keeps the member's znode.
func (m *membership) node(first time.Duration) *recipe.Node {
	c := &m.r.cfg
	name, sequential := c.nodeName(m.id)
	cfg := recipe.NodeConfig{
		Path: session.JoinPath(m.group, name), Keep: true, ACL: c.ACL, Former: m.r.formerSessions(),
		Logger: m.r.log.With("service", c.Name),
		Control: &recipe.NodeControl{
			Want: m.wanted, Changed: m.changed, Wake: m.wake,
			First: first, Splay: splayOf(m.group+"/"+m.id, c.Splay),
		},
	}
	if sequential {
		cfg.Sequence = &recipe.NodeSequence{Known: m.known()}
	}
	if c.format() == FormatServerSet {
		// Znode names of server sets do not identify the owner; the address does.
		cfg.Sequence.Mine = m.hasAddress
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

func (m *membership) wanted(state recipe.NodeState) (recipe.NodeWant, error) {
	if state.Owned && state.Adopted && state.Czxid != m.found {
		m.found, m.keep = state.Czxid, time.Now().Add(keepFor(m.r.checkers))
		m.adopt(state.Data)
	}
	w := m.want(time.Now(), m.keep)
	if w.state == StateRegistered || w.state == StateCritical || !w.present {
		m.keep = time.Time{} // decided
	}
	m.last = w
	wanted := recipe.NodeWant{Absent: !w.present, Next: w.next, Now: w.left}
	if err := m.identify(); err != nil || !w.present {
		return wanted, err
	}
	if !state.Owned {
		m.bornAt(time.Now())
	} else if w.state == StateKept {
		wanted.Data = state.Data // until the checks decide: the settings may be new
		return wanted, nil
	}
	data, err := m.data(w, m.host, m.id)
	if err != nil {
		return wanted, fmt.Errorf("encode member: %w", err)
	}
	wanted.Data = data
	return wanted, nil
}

func (m *membership) changed(state recipe.NodeState) {
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

// formerSessions returns the ids of our own sessions, those of this process and of
// the previous one.
func (r *Registrar) formerSessions() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.former))
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
