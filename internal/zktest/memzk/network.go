package memzk

import "github.com/zkagent/zkagent/internal/memzk"

// CutClientToServer stalls what clients send until Heal: it is held, and so is
// the news that a client closed. With names it concerns only connections that have one of
// them, see memzk.Names; that is so in all methods of this file.
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
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
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
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, addr := range orAll(addrs) {
		s.faults.refuseDial[addr] = true
	}
}

func orAll(addrs []string) []string {
	if len(addrs) == 0 {
		return []string{allAddrs}
	}
	return addrs
}

func (s *Server) cut(dir direction, addrs []string) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, addr := range orAll(addrs) {
		if key := (gateKey{addr, dir}); s.faults.gates[key] == nil {
			s.faults.gates[key] = make(chan struct{})
		}
	}
}

// Pause stops the server as SIGSTOP stops a process: connections stay and are
// accepted, nothing is answered, no session expires.
func (s *Server) Pause() {
	s.faults.mu.Lock()
	if s.faults.paused == nil {
		s.faults.paused = make(chan struct{})
	}
	s.faults.mu.Unlock()
	s.StopClock(true)
}

// Resume ends Pause. Sessions whose time ran out meanwhile expire at once,
// before anything that their clients sent is read, as on a real server.
func (s *Server) Resume() {
	s.faults.mu.Lock()
	paused := s.faults.paused
	s.faults.mu.Unlock()
	if paused == nil {
		return
	}
	s.StopClock(false)
	s.faults.mu.Lock()
	s.faults.paused = nil
	s.faults.mu.Unlock()
	close(paused)
}

// pass waits until the direction is open and the server is not paused; false
// means that stop was closed first.
func (fs *faults) pass(addr string, dir direction, stop <-chan struct{}) bool {
	for {
		fs.mu.Lock()
		gate := fs.paused
		for _, addr := range append(memzk.Names(addr), allAddrs) {
			if gate == nil {
				gate = fs.gates[gateKey{addr, dir}]
			}
		}
		fs.mu.Unlock()
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
