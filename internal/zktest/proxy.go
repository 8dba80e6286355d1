package zktest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is one of the two ways through a [Proxy].
type Direction int

// The two directions.
const (
	ClientToServer Direction = iota
	ServerToClient
)

// Proxy forwards TCP connections to one server and plays the network between:
// it cuts, stalls and delays. Its methods may be called at any time from any
// goroutine.
type Proxy struct {
	listener net.Listener
	done     chan struct{}
	wg       sync.WaitGroup

	mu     sync.Mutex // guards everything that follows
	target string
	refuse bool
	stall  [2]chan struct{} // per direction; nil: open; closed by Heal
	delay  time.Duration
	conns  map[net.Conn]struct{}
}

// NewProxy starts a proxy for target ("host:port") that ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("zktest: start a proxy: %v", err)
	}
	return NewProxyOn(tb, l, target)
}

// NewProxyOn starts a proxy that takes its connections from l, which it closes
// when the test ends.
func NewProxyOn(tb testing.TB, l net.Listener, target string) *Proxy {
	tb.Helper()
	p := &Proxy{target: target, listener: l, done: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut closes all connections, and every new one as soon as it is made, until
// Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.DropConnections()
}

// CutOneWay stalls one direction until Heal. It holds the bytes, and also the end of the
// stream. The other direction flows.
func (p *Proxy) CutOneWay(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stall[d] == nil {
		p.stall[d] = make(chan struct{})
	}
}

// Heal ends Cut and CutOneWay; what was held arrives. A delay stays.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = false
	for d, c := range p.stall {
		if c != nil {
			close(c)
			p.stall[d] = nil
		}
	}
}

// Delay holds every piece of data back for d from now on; 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// DropConnections closes the connections that exist.
func (p *Proxy) DropConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // reset, as a cut line would in the end
		}
		_ = c.Close()
	}
}

// SetTarget makes new connections go to another server.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *Proxy) close() {
	close(p.done)
	_ = p.listener.Close()
	p.DropConnections()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection until both directions have ended.
func (p *Proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.drop(client)
	if !p.pass(ClientToServer) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	cancel()
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	var wg sync.WaitGroup
	wg.Go(func() { p.relay(ClientToServer, client, server) })
	wg.Go(func() { p.relay(ServerToClient, server, client) })
	wg.Wait()
}

// relay copies src to dst. The end of src is passed on like data, through the
// same gate. After a failed write it returns: the other relay reads the end of
// dst and closes src.
func (p *Proxy) relay(d Direction, src, dst net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if !p.pass(d) {
			_ = dst.Close()
			return
		}
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

// pass waits for the delay and until the direction is open. It returns false when the
// proxy ends.
func (p *Proxy) pass(d Direction) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.done:
			return false
		}
	}
	for {
		p.mu.Lock()
		gate := p.stall[d]
		p.mu.Unlock()
		if gate == nil {
			return true
		}
		select {
		case <-gate:
		case <-p.done:
			return false
		}
	}
}

// keep registers c, or closes it when the proxy refuses connections.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		p.refuse = true
	default:
	}
	if p.refuse {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}
