package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/jute"
)

// The servers of the ensemble. With Config.FollowReconfig the Manager reads and watches
// the znode in which ZooKeeper keeps its servers. It tries those servers first, and then
// the configured ones. It saves the list in the state directory. So a process that
// starts when all configured servers are gone finds the others.
//
// Guaranteed: the Manager learns servers only from a server with a majority. It forgets
// servers that it learned for another configuration. A list without a client address,
// such as that of an ensemble without reconfiguration, changes nothing.

// configPath is the znode in which ZooKeeper keeps the configuration of the ensemble.
const configPath = "/zookeeper/config"

// serversName is the file in the state directory, and maxServers bounds a list.
const (
	serversName = "servers"
	maxServers  = 100
)

// learned holds the servers in the ensemble's list, for all sessions of a Manager.
type learned struct{ servers atomic.Pointer[[]string] }

func (l *learned) get() []string {
	if servers := l.servers.Load(); servers != nil {
		return slices.Clone(*servers)
	}
	return nil
}

// serverOrder returns the servers to try: the learned ones, then the configured ones. It
// shuffles each part.
func serverOrder(cfg *Config) []string {
	var order []string
	for _, part := range [][]string{cfg.learned.get(), slices.Clone(cfg.Servers)} {
		rand.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] }) //nolint:gosec // spreads load, no secret
		for _, server := range part {
			if !slices.Contains(order, server) {
				order = append(order, server)
			}
		}
	}
	return order
}

// followServers follows the list of the ensemble's servers until the session ends.
func (m *Manager) followServers(ctx context.Context, s *Session) {
	for {
		servers, w, err := s.members(ctx)
		if err != nil {
			if s.Context().Err() == nil && ctx.Err() == nil {
				s.log.Warn("cannot read the servers of the ensemble", "path", configPath, "err", err)
			}
			return
		}
		if len(servers) > 0 && s.State() != ReadOnly && !slices.Equal(servers, m.cfg.learned.get()) {
			s.log.Info("servers of the ensemble", "servers", strings.Join(servers, ","))
			m.cfg.learned.servers.Store(&servers)
			order := serverOrder(&s.cfg)
			s.mu.Lock()
			s.hosts.servers, s.hosts.next = order, 0
			s.mu.Unlock()
			if err := m.saveServers(servers); err != nil {
				s.log.Error("cannot save the servers for the next process", "err", err)
			}
		}
		if w.Wait(ctx) != nil {
			w.Stop()
			return
		}
	}
}

// members reads and watches the client addresses. Their znode is outside of the chroot.
func (s *Session) members(ctx context.Context) ([]string, *Watch, error) {
	var data []byte
	w, err := s.exchange(ctx, &request{
		op: jute.OpGetData, path: configPath, kind: watchData, watch: configPath,
		frame: newFrame(jute.OpGetData, configPath, true), result: []any{&data},
	})
	return parseMembers(string(data)), w, err
}

// parseMembers finds the client addresses in lines such as
// "server.1=zk1:2888:3888:participant;0.0.0.0:2181". It skips a line without one: such a
// server has its client port elsewhere.
func parseMembers(text string) []string {
	var servers []string
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "=")
		peer, client, ok := strings.Cut(rest, ";")
		if !strings.HasPrefix(name, "server.") || !ok || len(servers) == maxServers {
			continue
		}
		if addr, err := clientAddr(peer, client); err == nil && !slices.Contains(servers, addr) {
			servers = append(servers, addr)
		}
	}
	slices.Sort(servers)
	return servers
}

// clientAddr returns the address at which clients reach a server. If the client address
// is only a port, or any address of the host, it takes the host from the server's own
// address.
func clientAddr(peer, client string) (string, error) {
	host, port, err := net.SplitHostPort(client)
	if err != nil {
		host, port = "", client
	}
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		first, _, _ := strings.Cut(peer, "|") // of several addresses
		if end := strings.LastIndexByte(first, ']'); end >= 0 {
			host = strings.TrimPrefix(first[:end], "[")
		} else {
			host, _, _ = strings.Cut(first, ":")
		}
	}
	return serverAddr(net.JoinHostPort(host, port))
}

type savedServers struct {
	Ensemble []string `json:"ensemble"` // that was configured, sorted
	Servers  []string `json:"servers"`
}

func (m *Manager) saveServers(servers []string) error {
	if m.store == nil {
		return nil
	}
	return files.SaveJSON(filepath.Join(m.store.dir, serversName), savedServers{ensemble(m.cfg), servers})
}

func (m *Manager) loadServers() error {
	var v savedServers
	err := files.LoadJSON(filepath.Join(m.store.dir, serversName), &v)
	for _, server := range v.Servers {
		if _, bad := serverAddr(server); err == nil {
			err = bad
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("servers of the previous process: %w", err)
	case slices.Equal(v.Ensemble, ensemble(m.cfg)) && len(v.Servers) <= maxServers:
		m.cfg.learned.servers.Store(&v.Servers)
	}
	return nil
}

// Reconfiguration is a change of the servers of an ensemble: Join and Leave, or Members.
type Reconfiguration struct {
	Join    []string // servers as in "server.4=zk4:2888:3888:participant;2181"; a known id changes that server
	Leave   []string // ids of servers
	Members []string // all servers, as in Join
	From    int64    // version of the configuration that this changes; 0: any
}

// Reconfig changes the servers of the ensemble (ZooKeeper 3.5, with reconfigEnabled=true)
// and returns the new configuration as ZooKeeper writes it, with its version in the last
// line. The session needs to be super, or the ACL of /zookeeper/config lets it write.
// The error matches ErrReconfigDisabled, ErrReconfigInProgress, ErrNoQuorum, ErrBadVersion
// (From is not current), ErrBadArguments or ErrNoAuth.
func (s *Session) Reconfig(ctx context.Context, change Reconfiguration) (string, error) {
	list := func(servers []string) []byte {
		if len(servers) == 0 {
			return nil
		}
		return []byte(strings.Join(servers, ","))
	}
	from := change.From
	if from == 0 {
		from = -1
	}
	var data []byte
	_, err := s.exchange(ctx, &request{
		op: jute.OpReconfig, path: configPath, write: true, result: []any{&data},
		frame: newFrame(jute.OpReconfig, list(change.Join), list(change.Leave), list(change.Members), from),
	})
	return string(data), err
}
