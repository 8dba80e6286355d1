package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// listenAgain is how long a listener that cannot be opened is left alone.
const listenAgain = 10 * time.Second

// pageServer keeps the HTTP listener as the settings want it. One that cannot be
// opened keeps the agent from nothing else: it is an open condition, and is tried
// again; after a reload the former one goes on meanwhile. Only one goroutine at a
// time may use it.
type pageServer struct {
	a      *Agent
	wg     sync.WaitGroup
	listen string // what the settings said of the listener that is open; "": none is
	server *http.Server
}

// run follows the settings until ctx ends.
func (p *pageServer) run(ctx context.Context) {
	timer := time.NewTimer(listenAgain)
	defer timer.Stop()
	for {
		timer.Stop()
		if !p.apply(ctx) {
			timer.Reset(listenAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.a.relisten:
		case <-timer.C:
		}
	}
}

// apply opens the listener that the settings want and closes the former one; it
// reports whether all is as they want it.
func (p *pageServer) apply(ctx context.Context) bool {
	want := ""
	if c := p.a.cfg.Load().HTTP; c != nil {
		want = c.Listen
	}
	if want != p.listen {
		if err := p.open(ctx, want); err != nil {
			p.a.conds.Retain("http-not-listening", func(subject string) bool { return subject == want })
			p.a.conds.Open("http-not-listening", want, err.Error())
			return false
		}
	}
	p.a.conds.Retain("http-not-listening", func(string) bool { return false })
	return true
}

// open replaces the listener.
func (p *pageServer) open(ctx context.Context, listen string) error {
	var ln net.Listener
	if listen != "" {
		var err error
		if ln, err = httpListener(ctx, listen); err != nil {
			return err
		}
	}
	p.stop()
	if p.listen = listen; ln == nil {
		return nil
	}
	p.a.httpAddr.Store(ln.Addr().String())
	p.server = &http.Server{
		Handler: p.a.guarded(listen, p.a.httpMux()), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
	server := p.server
	p.wg.Go(func() { _ = server.Serve(ln) })
	return nil
}

// stop ends the server, if there is one; requests that run may finish within a
// second.
func (p *pageServer) stop() {
	if p.server == nil {
		return
	}
	p.a.httpAddr.Store("")
	endServer(p.server)
	p.wg.Wait()
	p.server, p.listen = nil, ""
}

// endServer lets requests finish within a second.
func endServer(s *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close()
	}
}

// httpListener opens the TCP listener. Every address at once is refused: the
// page has no TLS.
func httpListener(ctx context.Context, listen string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen %q: %w", listen, err)
	}
	if wildcard(host) {
		return nil, fmt.Errorf("http.listen %q: refusing to listen on every address without TLS; name one", listen)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("http.listen %s: another program listens there: %w", listen, err)
	case err != nil:
		return nil, fmt.Errorf("http.listen %s: %w", listen, err)
	}
	return ln, nil
}
