package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
)

// listeners are the open ends of a Server.
type listeners struct {
	page   pageServer
	admin  *http.Server // nil without an admin socket
	wg     sync.WaitGroup
	socket string
	// own is the socket file that we made, so that only that one is removed.
	own os.FileInfo
}

// Listen opens the admin socket and, if it can, the HTTP listener. It returns
// what follows the settings of the listener until its context ends, and what
// closes both: requests that run may finish.
func (s *Server) Listen(ctx context.Context) (func(context.Context), func(), error) {
	l := &listeners{page: pageServer{s: s}}
	if s.Socket != "" {
		ln, err := adminSocket(ctx, s.Socket)
		if err != nil {
			return nil, nil, err
		}
		l.socket = s.Socket
		l.own, _ = os.Lstat(l.socket)
		admin := &http.Server{
			Handler: s.adminMux(), ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit,
			ConnContext: withPeer,
		}
		ln = bounded(ln, admin, func() int { return mostConnections(adminConnections) })
		l.admin = admin
		l.wg.Go(func() { _ = admin.Serve(ln) })
	}
	l.page.apply(ctx)
	return l.page.run, l.stop, nil
}

// How long requests that run may take when the agent ends. The sender of an order has
// its answer, though the order was to end, and a slow disk keeps the note of it.
const (
	lastPages  = time.Second
	lastOrders = 10 * time.Second
)

// stop ends the servers; requests that run may finish.
func (l *listeners) stop() {
	l.page.stop()
	if l.admin != nil {
		endServer(l.admin, lastOrders)
	}
	l.wg.Wait()
	if now, err := os.Lstat(l.socket); err == nil && l.own != nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.socket)
	}
}

// listenAgain is how long a listener that cannot be opened is left alone.
const listenAgain = 10 * time.Second

// pageServer keeps the HTTP listener as the settings want it. One that cannot be
// opened keeps the agent from nothing else: it is an open condition, and is tried
// again; after a reload the previous one continues meanwhile. Only one goroutine at a
// time may use it.
type pageServer struct {
	s      *Server
	wg     sync.WaitGroup
	listen string // what the settings said of the listener that is open; "": none is
	server *http.Server
}

// run follows the settings until ctx ends.
func (p *pageServer) run(ctx context.Context) {
	timer := time.NewTimer(listenAgain)
	defer timer.Stop()
	sample := time.NewTicker(sampleEvery)
	defer sample.Stop()
	p.s.samples.take(p.s)
	for {
		timer.Stop()
		if !p.apply(ctx) {
			timer.Reset(listenAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-sample.C:
			if p.server != nil {
				p.s.samples.take(p.s)
			}
		case <-p.s.relisten:
		case <-timer.C:
		}
	}
}

func (p *pageServer) apply(ctx context.Context) bool {
	want := p.s.settings().Listen
	if want != p.listen {
		if err := p.open(ctx, want); err != nil {
			p.s.Conditions.Retain(condition.HTTPNotListening, func(subject string) bool { return subject == want })
			p.s.Conditions.Open(condition.HTTPNotListening, want, err.Error())
			return false
		}
	}
	p.s.Conditions.Retain(condition.HTTPNotListening, func(string) bool { return false })
	return true
}

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
	p.s.httpAddr.Store(ln.Addr().String())
	p.server = p.s.httpServer(listen)
	server, ln := p.server, bounded(ln, p.server, p.s.mostHTTP)
	p.wg.Go(func() { _ = server.Serve(ln) })
	return nil
}

// httpServer is the server of the HTTP listener, with its limits.
func (s *Server) httpServer(listen string) *http.Server {
	return &http.Server{
		Handler: s.guarded(listen, s.Handler()), ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit,
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
}

// stop ends the server, if there is one; requests that run may finish.
func (p *pageServer) stop() {
	if p.server == nil {
		return
	}
	p.s.httpAddr.Store("")
	endServer(p.server, lastPages)
	p.wg.Wait()
	p.server, p.listen = nil, ""
}

// endServer lets requests finish within a limit.
func endServer(s *http.Server, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
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
	ip, bad := netip.ParseAddr(host)
	if host == "" || host == "*" || bad == nil && ip.IsUnspecified() {
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

// contentPolicy lets the page use nothing but what the agent serves itself.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// Handler is what the TCP listener serves: reading only.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.readRoutes(mux, s.public)
	s.pageRoutes(mux)
	return mux
}

// guarded refuses what a browser could be tricked into: names that are not
// ours (DNS rebinding), and everything that is not reading.
func (s *Server) guarded(listen string, next http.Handler) http.Handler {
	own := []string{"localhost", "127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		own = append(own, host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY")
		host := hostOf(r.Host)
		named := func(name string) bool { return strings.EqualFold(name, host) }
		if !slices.Contains(own, host) && !slices.ContainsFunc(s.settings().Hosts, named) {
			http.Error(w, "this name is not one of the agent's; add it to http.hosts", http.StatusForbidden)
			return
		}
		origin := r.Header.Get("Origin")
		_, from, _ := strings.Cut(origin, "://")
		crossed := r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
		if crossed || origin != "" && !strings.EqualFold(from, r.Host) {
			http.Error(w, "requests from other sites are refused", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "this listener is for reading; orders go over the admin socket", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf is the name in a Host header, without port and brackets.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}
