package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

// errLookAgain means that the state of the znode is not known, or not what it
// was when it was looked at: look again at once.
var errLookAgain = errors.New("look again")

func nodeName(p string) string { return path.Base(p) }

// identify finds out the address and the name of the member, once per session.
func (m *membership) identify(ctx context.Context) error {
	if m.id != "" && m.host != "" {
		return nil
	}
	id, err := m.r.memberID()
	if err != nil {
		return err
	}
	host := m.r.cfg.Address
	if host == "" {
		if host, err = localAddress(ctx, m.s.Server()); err != nil {
			return fmt.Errorf("find the local address that reaches %s: %w", m.s.Server(), err)
		}
		if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
			return fmt.Errorf("the address that reaches ZooKeeper is %s, which other hosts cannot use: set the address of the service (it may be %s)", host, host)
		}
	}
	if host, err = ParseHost(host); err != nil {
		return err
	}
	m.id, m.host = id, host
	if !m.sequential() {
		m.path = session.JoinPath(m.r.cfg.Group, id)
	}
	return nil
}

func (m *membership) sequential() bool {
	switch m.r.cfg.format() {
	case FormatNerve, FormatServerSet:
		return true
	case FormatTemplate:
		return m.r.cfg.Sequential
	}
	return false
}

// prefix is what sequential names of this member begin with.
func (m *membership) prefix() string {
	if m.r.cfg.format() == FormatServerSet {
		return serverSetPrefix
	}
	return m.id + "_"
}

// look reads what is there and sets a watch on it.
func (m *membership) look(ctx context.Context) error {
	m.watch.Stop()
	m.watch = nil
	was := m.mine
	m.mine, m.blocked = false, nil
	if m.sequential() && m.path == "" {
		found, err := m.findOwn(ctx)
		if err != nil {
			return err
		}
		m.path = found
	}
	if m.path == "" {
		m.looked = true
		return nil
	}
	data, stat, w, err := m.s.GetW(ctx, m.path)
	if errors.Is(err, session.ErrNoNode) {
		return m.vanished(was)
	}
	if err != nil {
		return fmt.Errorf("read member: %w", err)
	}
	m.watch, m.conn, m.looked = w, m.s.Connection(), true
	if stat.EphemeralOwner == m.s.ID() {
		m.found(data, was)
		return nil
	}
	if m.sequential() { // the name is of a former session and will go by itself
		w.Stop()
		m.watch, m.path = nil, ""
		return errLookAgain
	}
	return m.inTheWay(ctx, stat)
}

// found adopts a znode that this session owns.
func (m *membership) found(data []byte, was bool) {
	if !m.mine && !was {
		m.since = time.Now()
		m.keep = m.since.Add(keepFor(m.r.checkers))
		m.r.adopt(data)
	}
	if was && m.data != nil && !bytes.Equal(data, m.data) {
		// Another registrar of this session has the same id, or an operator wrote.
		m.since = time.Now()
		m.delay(false)
		m.r.log.Warn("member written by somebody else", "service", m.r.cfg.Name, "path", m.path, "retry_in", m.back)
	}
	m.mine, m.data = true, data
}

// vanished handles a znode that is not there. Where it was ours, somebody has
// deleted it: it is made again after a while, a longer one each time.
func (m *membership) vanished(was bool) error {
	m.looked = true
	if m.sequential() {
		m.path = ""
	}
	if was {
		m.delay(false)
		m.r.log.Warn("member deleted by somebody else", "service", m.r.cfg.Name, "group", m.r.cfg.Group, "retry_in", m.back)
	}
	return nil
}

// inTheWay handles a znode at our path that this session does not own.
func (m *membership) inTheWay(ctx context.Context, stat session.Stat) error {
	switch {
	case stat.EphemeralOwner == 0:
		m.blocked = fmt.Errorf("%s is a persistent znode and no member: delete it, or choose another member_id", m.path)
	case m.r.isFormer(stat.EphemeralOwner):
		w := m.r.want(time.Now(), m.keep)
		if !w.present {
			return nil // it goes with its session
		}
		return m.replace(ctx, stat, w)
	default:
		m.blocked = fmt.Errorf("%s belongs to session %#x of another process: waiting until it is gone", m.path, uint64(stat.EphemeralOwner)) // #nosec G115 -- shown in hexadecimal
	}
	m.r.log.Warn("member is in the way", "service", m.r.cfg.Name, "path", m.path, "err", m.blocked)
	return nil
}

// replace puts our znode in the place of one of our former session, in one
// step: readers never see the member missing.
func (m *membership) replace(ctx context.Context, stat session.Stat, w want) error {
	if time.Now().Before(m.notBefore) {
		m.looked = false
		return nil
	}
	m.r.born0(time.Now())
	data, err := m.r.data(w, m.host, m.id)
	if err != nil {
		return fmt.Errorf("encode member: %w", err)
	}
	_, err = m.s.Multi(ctx, session.DeleteOp(m.path, stat.Version), session.CreateOp(m.path, data, session.Ephemeral, m.r.cfg.ACL...))
	switch {
	case err == nil:
		return m.adoptCreated(ctx, m.path)
	case errors.Is(err, session.ErrNoNode), errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists):
		return errLookAgain
	}
	return m.unknown(ctx, fmt.Errorf("replace member of a former session: %w", err))
}

// findOwn returns the path of this member among what the session owns; empty
// when there is none. It is how a sequential create whose reply was lost, and
// a member of before a restart, are found.
func (m *membership) findOwn(ctx context.Context) (string, error) {
	group := m.r.cfg.Group
	paths, err := m.s.Ephemerals(ctx, group)
	if errors.Is(err, session.ErrUnimplemented) {
		paths, err = m.listGroup(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("list own members: %w", err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool {
		seq, ok := strings.CutPrefix(p, session.JoinPath(group, m.prefix()))
		return !ok || !isSequence(seq)
	})
	if known := m.r.known(); slices.Contains(paths, known) {
		return known, nil
	}
	for _, p := range paths {
		if m.r.cfg.format() != FormatServerSet {
			return p, nil
		}
		// Names of server sets do not say whose they are: the address does.
		data, stat, err := m.s.Get(ctx, p)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return "", fmt.Errorf("read own member: %w", err)
		}
		member, decodeErr := Decode(FormatServerSet, nodeName(p), data)
		if err == nil && decodeErr == nil && stat.EphemeralOwner == m.s.ID() && member.Host == m.host && member.Port == m.r.cfg.Port {
			return p, nil
		}
	}
	return "", nil
}

// listGroup finds what this session owns in the group on servers that cannot
// tell (before 3.6).
func (m *membership) listGroup(ctx context.Context) ([]string, error) {
	names, _, err := m.s.Children(ctx, m.r.cfg.Group)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	var own []string
	for _, name := range names {
		if !strings.HasPrefix(name, m.prefix()) {
			continue
		}
		p := session.JoinPath(m.r.cfg.Group, name)
		stat, ok, existsErr := m.s.Exists(ctx, p)
		if existsErr != nil {
			return nil, existsErr
		}
		if ok && stat.EphemeralOwner == m.s.ID() {
			own = append(own, p)
		}
	}
	return own, err
}

func (m *membership) create(ctx context.Context, data []byte) error {
	target, mode := m.path, session.Ephemeral
	if m.sequential() {
		target, mode = session.JoinPath(m.r.cfg.Group, m.prefix()), session.EphemeralSequential
	}
	created, _, err := m.s.Create(ctx, target, data, mode, m.r.cfg.ACL...)
	if errors.Is(err, session.ErrNoNode) {
		if err = m.s.CreateParents(ctx, target); err != nil {
			return fmt.Errorf("create group: %w", err)
		}
		created, _, err = m.s.Create(ctx, target, data, mode, m.r.cfg.ACL...)
	}
	if errors.Is(err, session.ErrNodeExists) {
		return errLookAgain
	}
	if err != nil {
		return m.unknown(ctx, fmt.Errorf("create member: %w", err))
	}
	return m.adoptCreated(ctx, created)
}

// adoptCreated checks that the znode is this session's: a request that was
// queued over an expiry runs in the next session.
func (m *membership) adoptCreated(ctx context.Context, created string) error {
	m.path = created
	data, stat, w, err := m.s.GetW(ctx, created)
	if errors.Is(err, session.ErrNoNode) {
		return m.vanished(true)
	}
	if err != nil {
		return fmt.Errorf("read member: %w", err)
	}
	if stat.EphemeralOwner != m.s.ID() {
		w.Stop()
		return errLookAgain
	}
	m.watch.Stop()
	m.watch, m.conn, m.looked, m.mine, m.data, m.since = w, m.s.Connection(), true, true, data, time.Now()
	m.r.log.Info("member registered", "service", m.r.cfg.Name, "path", created, "czxid", stat.Czxid)
	return nil
}

func (m *membership) set(ctx context.Context, data []byte) error {
	if _, err := m.s.Set(ctx, m.path, data, -1); err != nil {
		m.data = nil // not known
		if errors.Is(err, session.ErrNoNode) {
			return errLookAgain
		}
		return m.unknown(ctx, fmt.Errorf("update member: %w", err))
	}
	m.data = data
	return nil
}

func (m *membership) remove(ctx context.Context) error {
	m.watch.Stop()
	m.watch = nil
	if err := m.s.Delete(ctx, m.path, -1); err != nil && !errors.Is(err, session.ErrNoNode) {
		// Should it be gone after all, nobody else has deleted it.
		m.mine = !errors.Is(err, session.ErrUnknown)
		return m.unknown(ctx, fmt.Errorf("remove member: %w", err))
	}
	m.r.log.Info("member removed", "service", m.r.cfg.Name, "path", m.path)
	m.mine, m.data, m.keep = false, nil, time.Time{}
	if m.sequential() {
		m.path = ""
	}
	m.looked = true // nothing of ours is there
	return nil
}

// unknown makes of a lost reply a look: after a sync, what is there tells
// whether the request was applied.
func (m *membership) unknown(ctx context.Context, err error) error {
	if !errors.Is(err, session.ErrUnknown) {
		return err
	}
	if m.sequential() && !m.mine {
		m.path = ""
	}
	if err := m.s.Sync(ctx, m.r.cfg.Group); err != nil && !errors.Is(err, session.ErrNoNode) {
		return fmt.Errorf("sync after a lost reply: %w", err)
	}
	return errLookAgain
}
