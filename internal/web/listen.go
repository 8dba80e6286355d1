package web

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/show"
)

// Listen opens the admin socket and, if it can, the HTTP listener. It returns
// what follows the settings of the listener until its context ends, and what
// closes both: requests that run may finish.
func (s *Server) Listen(ctx context.Context) (func(context.Context), func(), error) {
	page := pageServer{s: s}
	stop := page.stop
	if s.Socket != "" {
		ln, err := adminSocket(ctx, s.Socket)
		if err != nil {
			return nil, nil, err
		}
		own, _ := os.Lstat(s.Socket) // the file that we made: only that one is removed
		admin := &http.Server{
			Handler: s.adminMux(), ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit,
			ConnContext: withPeer,
		}
		ln = bounded(ln, admin, func() int { return mostConnections(adminConnections) })
		var wg sync.WaitGroup
		wg.Go(func() { _ = admin.Serve(ln) })
		stop = func() {
			page.stop()
			endServer(admin, lastOrders)
			wg.Wait()
			if now, err := os.Lstat(s.Socket); err == nil && own != nil && os.SameFile(now, own) {
				_ = os.Remove(s.Socket)
			}
		}
	}
	page.apply(ctx)
	return page.run, stop, nil
}

// How long requests that run may take when the agent ends. The sender of an order has
// its answer, though the order was to end, and a slow disk keeps the note of it.
const (
	lastPages  = time.Second
	lastOrders = 10 * time.Second
)

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
	bodies := map[string]func(*http.Request, *show.Status) any{
		"fleet": s.fleetPage, "services": s.servicesPage, "templates": s.templatesPage, "timeline": s.timelinePage,
		"agent":   func(*http.Request, *show.Status) any { return nil },
		"configs": s.changesPage, "rollouts": s.changesPage,
		"locks": func(r *http.Request, _ *show.Status) any {
			lines, err := s.lines.get(r.Context(), s.readLines)
			return map[string]any{"Lines": lines, "Error": problem(err)}
		},
	}
	for _, p := range sections {
		pattern := p.Path
		if pattern == "/" {
			pattern = "/{$}"
		}
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			s.servePage(w, p, func(st *show.Status) any { return bodies[p.name](r, st) })
		})
	}
	mux.HandleFunc("GET /hosts/{id}", s.serveHost)
	mux.HandleFunc("GET /templates/{name}", s.serveBlamePage)
	mux.HandleFunc("GET /configs/{name}", s.serveConfig)
	mux.HandleFunc("GET /live", s.serveLive)
	for name, kind := range map[string]string{"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, pageFiles, "page/"+name)
		})
	}
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
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil { // without a port
			host = r.Host
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
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

// How the connections of the listeners are bounded.
const (
	DefaultMaxConnections = 1500             // of the HTTP listener, readers who wait among them
	adminConnections      = 128              // of the admin socket
	headerLimit           = 5 * time.Second  // for the header of a request
	idleLimit             = 20 * time.Second // for a connection between two requests
	filesKept             = 256              // file descriptors for the agent's own work
	fewestConnections     = 4                // however few file descriptors there are
)

// busy is the answer to a connection too many.
const busy = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

// connections is a listener with a bound. A connection too many takes the place of
// the one that has been idle, or slow to ask, for the longest; when all of them are
// being served, it is refused. So idle connections lock out no client, and the agent
// keeps file descriptors for its own work.
type connections struct {
	net.Listener
	max func() int

	mu   sync.Mutex // mu guards what follows.
	open map[net.Conn]time.Time
}

// bounded returns the listener with a bound, and makes the server report which
// connections are being served.
func bounded(ln net.Listener, s *http.Server, most func() int) net.Listener {
	c := &connections{Listener: ln, max: most, open: map[net.Conn]time.Time{}}
	s.ConnState = c.state
	return c
}

// served marks a connection that answers a request.
var served = time.Unix(math.MaxInt32, 0)

func (c *connections) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.open[conn]; !ok {
		return // it lost its place.
	}
	switch state {
	case http.StateActive:
		c.open[conn] = served
	case http.StateIdle:
		c.open[conn] = time.Now()
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	case http.StateNew:
	}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.admit(conn) {
			return conn, nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(busy))
		_ = conn.Close()
	}
}

func (c *connections) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.max() {
		var oldest net.Conn
		for other, since := range c.open {
			if since != served && (oldest == nil || since.Before(c.open[oldest])) {
				oldest = other
			}
		}
		if oldest == nil {
			return false
		}
		delete(c.open, oldest)
		_ = oldest.Close()
	}
	c.open[conn] = time.Now()
	return true
}

// mostConnections is how many connections a listener may have: what the settings
// say, and less when the process may open few files.
func mostConnections(settings int) int {
	if settings <= 0 {
		settings = DefaultMaxConnections
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return settings
	}
	return max(min(settings, (int(limit.Cur)-filesKept)/2), fewestConnections)
}

// mostStreams leaves a quarter of the connections to those who do not wait.
func (s *Server) mostStreams() int64 { return int64(s.mostHTTP() * 3 / 4) }

func (s *Server) mostHTTP() int { return mostConnections(s.settings().MaxConnections) }

// maxSocketPath is how long the path of a unix socket may be.
const maxSocketPath = 107

// adminSocket opens the unix socket: one left over by a dead process is
// removed, one that answers is not.
func adminSocket(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket %s: the path has %d bytes, at most %d are possible", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("admin socket %s: a file that is not a socket is in the way", path)
		}
		var d net.Dialer
		dial, cancel := context.WithTimeout(ctx, time.Second)
		conn, err := d.DialContext(dial, "unix", path)
		cancel()
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("admin socket %s: another agent is listening; stop it, or give this one its own state_dir and socket", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("admin socket %s: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group may give orders.
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), ln.Close())
	}
	return ln, nil
}

// peerKey is the key of the peer of a connection.
type peerKey struct{}

// peerID is the process at the other end of a unix socket.
type peerID struct {
	uid uint32
	pid int32
}

func (p peerID) name() string {
	u, err := user.LookupId(strconv.FormatUint(uint64(p.uid), 10))
	if err != nil {
		return fmt.Sprintf("uid %d", p.uid)
	}
	return u.Username
}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var id peerID
	known := false
	_ = raw.Control(func(fd uintptr) {
		id, known = peerOf(int(fd))
	})
	if !known {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, id)
}

// peer returns who is at the other end of the admin socket, if the system tells.
func peer(ctx context.Context) (peerID, bool) {
	id, ok := ctx.Value(peerKey{}).(peerID)
	return id, ok
}
