package memzk

// CutClientToServer stalls what clients send until Heal: it is held, and so is
// the news that a client closed. With addresses it concerns only connections
// dialed under them; that is so in all methods of this file.
func (s *Server) CutClientToServer(addrs ...string) { s.cut(clientToServer, addrs) }

// CutServerToClient stalls what the server sends until Heal.
func (s *Server) CutServerToClient(addrs ...string) { s.cut(serverToClient, addrs) }

// Partition stalls both directions until Heal, of present and of new
// connections: they are accepted, and nothing answers.
func (s *Server) Partition(addrs ...string) {
	s.cut(clientToServer, addrs)
	s.cut(serverToClient, addrs)
}

// BlackHole is Partition for all addresses, or its end.
func (s *Server) BlackHole(on bool) {
	if on {
		s.Partition()
	} else {
		s.Heal()
	}
}

// Heal ends what the methods above began; what was held arrives. With addresses
// it heals only what was cut for exactly these.
func (s *Server) Heal(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(addrs) == 0 {
		for _, gate := range s.faults.gates {
			close(gate)
		}
		clear(s.faults.gates)
		clear(s.faults.refuseDial)
		return
	}
	for _, addr := range addrs {
		delete(s.faults.refuseDial, addr)
		for _, dir := range []direction{clientToServer, serverToClient} {
			if gate := s.faults.gates[gateKey{addr, dir}]; gate != nil {
				close(gate)
				delete(s.faults.gates, gateKey{addr, dir})
			}
		}
	}
}

// RefuseDial refuses new connections until Heal.
func (s *Server) RefuseDial(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range orAll(addrs) {
		s.faults.refuseDial[addr] = true
	}
}

// DropConnections closes the connections that exist; sessions live on.
func (s *Server) DropConnections(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		for _, addr := range orAll(addrs) {
			if addr == allAddrs || addr == c.addr {
				c.kill()
			}
		}
	}
}

func orAll(addrs []string) []string {
	if len(addrs) == 0 {
		return []string{allAddrs}
	}
	return addrs
}

func (s *Server) cut(dir direction, addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range orAll(addrs) {
		if key := (gateKey{addr, dir}); s.faults.gates[key] == nil {
			s.faults.gates[key] = make(chan struct{})
		}
	}
}

// pass waits until the direction is open and the server is not paused; false
// means that stop was closed first.
func (c *conn) pass(dir direction, stop <-chan struct{}) bool {
	for {
		c.s.mu.Lock()
		gate := c.s.paused
		for _, addr := range []string{allAddrs, c.addr} {
			if gate == nil {
				gate = c.s.faults.gates[gateKey{addr, dir}]
			}
		}
		c.s.mu.Unlock()
		if gate == nil {
			return true
		}
		select {
		case <-gate:
		case <-stop:
			return false
		}
	}
}
