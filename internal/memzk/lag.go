package memzk

// Lag lets the views of the given addresses fall behind from now on, like
// followers that are slow: their reads, and their watches, see the tree as it is
// now, until CatchUp, a sync or a write on one of their connections. After the
// sync or the write the view lags again.
func (s *Server) Lag(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range addrs {
		if s.lagging[addr] != nil {
			continue
		}
		r := newReplica(s.primary.tree.clone(), s.opts.since("3.9.3"))
		s.lagging[addr] = r
		s.moveConns(addr, r)
	}
}

// CatchUp ends Lag; the watches that were due fire.
func (s *Server) CatchUp(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range addrs {
		r := s.lagging[addr]
		if r == nil {
			continue
		}
		r.catchUp()
		delete(s.lagging, addr)
		s.moveConns(addr, s.primary)
	}
}

// moveConns makes the connections of addr, with their watches, see r.
func (s *Server) moveConns(addr string, r *replica) {
	for c := range s.conns {
		if c.addr == addr && !c.isEnded {
			c.replica.dataWatches.move(c, r.dataWatches)
			c.replica.childWatches.move(c, r.childWatches)
			c.replica = r
		}
	}
}

// replicaFor returns what a new connection sees. It needs Server.mu.
func (s *Server) replicaFor(addr string) *replica {
	if r := s.lagging[addr]; r != nil {
		return r
	}
	return s.primary
}

// catchUp applies what is pending; a write or a sync of a connection must see
// its own effects.
func (r *replica) catchUp() {
	for _, t := range r.pending {
		r.apply(t)
	}
	r.pending = nil
}

func (c *conn) catchUp() { c.replica.catchUp() }
