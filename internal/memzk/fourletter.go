package memzk

import (
	"fmt"
	"strings"
	"time"
)

var fourLetterWords = []string{"ruok", "srvr", "stat", "mntr", "envi", "conf", "cons", "wchs", "isro", "dump"}

// fourLetterWord answers one of the administrator's commands. It needs
// Server.mu.
func (s *Server) fourLetterWord(word string) string {
	if s.opts.NoWords {
		return word + " is not executed because it is not in the whitelist.\n"
	}
	switch word {
	case "ruok":
		return "imok"
	case "isro":
		if s.readOnly {
			return "ro"
		}
		return "rw"
	case "srvr":
		return s.srvr("")
	case "stat":
		return s.srvr("Clients:\n" + s.cons() + "\n")
	case "cons":
		return s.cons() + "\n"
	case "mntr":
		return s.mntr()
	case "envi":
		return "Environment:\nzookeeper.version=" + s.version() + "\nos.name=go\n"
	case "conf":
		o := s.opts
		return fmt.Sprintf("clientPort=0\ntickTime=%d\nmaxClientCnxns=0\nminSessionTimeout=%d\nmaxSessionTimeout=%d\nserverId=0\n",
			o.TickTime.Milliseconds(), o.MinTimeout.Milliseconds(), o.MaxTimeout.Milliseconds())
	case "dump":
		return s.dump()
	}
	return s.wchs()
}

func (s *Server) srvr(clients string) string {
	received, sent := s.packets()
	mode := "standalone"
	if s.readOnly {
		mode = "read-only"
	}
	return fmt.Sprintf("Zookeeper version: %s\n%sLatency min/avg/max: 0/0.0/0\nReceived: %d\nSent: %d\nConnections: %d\n"+
		"Outstanding: 0\nZxid: 0x%x\nMode: %s\nNode count: %d\n",
		s.version(), clients, received, sent, len(s.conns), s.primary.tree.zxid, mode, len(s.primary.tree.nodes))
}

func (s *Server) packets() (uint64, uint64) {
	var received, sent uint64
	for c := range s.conns {
		received += c.received
		sent += c.sent
	}
	return received, sent
}

func (s *Server) cons() string {
	var b strings.Builder
	for c := range s.conns {
		fmt.Fprintf(&b, " /%s[1](queued=0,recved=%d,sent=%d", c.ip, c.received, c.sent)
		if c.session != nil {
			fmt.Fprintf(&b, ",sid=0x%x,est=%d,to=%d", c.session.id, c.since.UnixMilli(), c.session.timeout.Milliseconds())
		}
		b.WriteString(")\n")
	}
	return b.String()
}

func (s *Server) mntr() string {
	received, sent := s.packets()
	var n WatchCounts
	s.primary.countWatches(&n)
	ephemerals, size := 0, 0
	for _, paths := range s.primary.tree.ephemerals {
		ephemerals += len(paths)
	}
	for path, node := range s.primary.tree.nodes {
		size += len(path) + len(node.data)
	}
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "zk_%s\t%v\n", key, value) }
	line("version", s.version())
	line("server_state", "standalone")
	line("uptime", time.Since(s.started).Milliseconds())
	line("znode_count", len(s.primary.tree.nodes))
	line("watch_count", n.Data+n.Children+n.Persistent+n.Recursive)
	line("ephemerals_count", ephemerals)
	line("approximate_data_size", size)
	line("num_alive_connections", len(s.conns))
	line("outstanding_requests", 0)
	line("global_sessions", len(s.sessions))
	line("packets_received", received)
	line("packets_sent", sent)
	line("avg_latency", "0.0")
	line("min_latency", 0)
	line("max_latency", 0)
	return b.String()
}

func (s *Server) wchs() string {
	var n WatchCounts
	s.primary.countWatches(&n)
	watching, paths := map[*conn]bool{}, map[string]bool{}
	for _, w := range []*watchTable{s.primary.dataWatches, s.primary.childWatches} {
		for p, watchers := range w.byPath {
			paths[p] = true
			for c := range watchers {
				watching[c] = true
			}
		}
	}
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n",
		len(watching), len(paths), n.Data+n.Children+n.Persistent+n.Recursive)
}

func (s *Server) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "SessionTracker dump:\nSession Sets (%d):\n", len(s.sessions))
	fmt.Fprintf(&b, "ephemeral nodes dump:\nSessions with Ephemerals (%d):\n", len(s.primary.tree.ephemerals))
	for id, paths := range s.primary.tree.ephemerals {
		fmt.Fprintf(&b, "0x%x:\n", id)
		for path := range paths {
			fmt.Fprintf(&b, "\t%s\n", path)
		}
	}
	return b.String()
}
