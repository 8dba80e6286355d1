package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// Defaults and bounds of a Config.
const (
	DefaultTimeout  = 10 * time.Second
	minTimeout      = 10 * time.Millisecond
	maxGranted      = 10 * time.Minute // of a server whose least timeout is more than asked for
	DefaultPort     = "2181"
	DefaultMaxFrame = 1<<20 - 1 // default jute.maxbuffer of a server
	DefaultMaxReply = 32 << 20  // lists of children may be longer than requests

	minFrame = 1024
)

// Config describes how to reach an ensemble, and the settings of the session. Only
// Servers is required.
type Config struct {
	// Servers are "host", "host:port" or "[v6]:port". Every dial resolves the names,
	// and tries each address of a name as a separate server.
	Servers []string
	// Chroot is added before every path, and removed from every returned path. It is
	// "" or "/...".
	Chroot string
	// Timeout is the session timeout to ask for. The server chooses one within its own
	// bounds, see Session.Timeout. 0 means DefaultTimeout. A server that chooses more
	// than 10 minutes, and more than this, is refused.
	Timeout time.Duration
	// Auth is sent on every connection, before anything else.
	Auth []Auth
	// SASL, when not nil, proves an identity before Auth is sent.
	SASL SASLMechanism
	// TLS, when not nil, is called at every dial, so that renewed certificates are
	// used. An empty ServerName becomes the host name of the server dialed.
	TLS func() (*tls.Config, error)
	// ACL is the ACL of created znodes. If it is empty, a session without an identity
	// opens them to all. With one (Auth, SASL, or a client certificate that the server
	// asked for) all may read them, and the identity may change them.
	ACL []ACL
	// Logger gets the life of the session; nil discards it.
	Logger *slog.Logger
	// Metrics may be shared by several managers; nil counts nothing. Package prom has one for Prometheus.
	Metrics Metrics
	// Trace, if not nil, is called for each request.
	Trace Tracer
	// Dial opens a connection; nil dials TCP with keep-alive.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// ReadOnly lets a Manager use a server without a majority when it finds no other.
	// It opens a separate session with the state ReadOnly, where reads work and
	// everything else waits. When there is a majority again, the Manager resumes the
	// previous session.
	ReadOnly bool
	// FollowReconfig lets a Manager learn the servers of the ensemble from ZooKeeper
	// (/zookeeper/config), and keep them in StateDir.
	FollowReconfig bool
	// StateDir is the directory that keeps the session for the next process; "" keeps
	// no session.
	StateDir string
	// MaxFrame is the largest request in bytes, and MaxReply the largest reply. The
	// session does not send a larger request: the server would close the connection.
	MaxFrame, MaxReply int
	// Identity names this process in logs and in the state file.
	Identity string

	host      func() host                                              // nil: this one
	resolve   func(ctx context.Context, host string) ([]string, error) // addresses of a name; nil: Dial knows names
	slept     func() time.Duration                                     // how long the machine has slept so far; nil: slept
	abilities *abilities                                               // of the servers, over sessions
	learned   *learned                                                 // servers of the ensemble, over sessions
}

// Auth is one credential, such as scheme "digest" and data "user:password".
type Auth struct {
	Scheme string // "digest", or another that the servers know
	Data   []byte // as the scheme wants it: "user:password" for digest
}

// ParseServers splits "a:2181,b:2181/chroot" into servers and chroot. A server
// without a port gets DefaultPort. IPv6 addresses need brackets when a port follows.
func ParseServers(s string) ([]string, string, error) {
	var servers []string
	list, chroot := s, ""
	if i := strings.IndexByte(s, '/'); i >= 0 {
		list, chroot = s[:i], s[i:]
	}
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		addr, err := serverAddr(part)
		if err != nil {
			return nil, "", err
		}
		servers = append(servers, addr)
	}
	if len(servers) == 0 {
		return nil, "", fmt.Errorf("parse servers %q: no server named", s)
	}
	chroot, err := cleanChroot(strings.TrimSpace(chroot))
	if err != nil {
		return nil, "", err
	}
	return servers, chroot, nil
}

func serverAddr(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), DefaultPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", fmt.Errorf("server %q: %w", s, err)
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("server %q: port %s is not in 1-65535", s, port)
	}
	if host == "" {
		return "", fmt.Errorf("server %q: want host:port, as in zk1:2181", s)
	}
	return net.JoinHostPort(host, port), nil
}

func cleanChroot(c string) (string, error) {
	c = strings.TrimRight(c, "/")
	if c == "" {
		return "", nil
	}
	if err := ValidatePath(c); err != nil {
		return "", fmt.Errorf("chroot: %w", err)
	}
	return c, nil
}

// mayGrant reports whether a server may choose this session timeout. A silent connection
// is only noticed after a part of it, so a giant one would hold the client for days. A
// tiny one would make it send pings without a pause.
func (c *Config) mayGrant(timeout time.Duration) bool {
	return timeout >= minTimeout && timeout <= max(c.Timeout, maxGranted)
}

// complete returns c with defaults filled in, or what is wrong with it.
func (c Config) complete() (Config, error) {
	if len(c.Servers) == 0 {
		return c, errors.New("session: no servers configured")
	}
	c.Servers = slices.Clone(c.Servers)
	for i, s := range c.Servers {
		addr, err := serverAddr(s)
		if err != nil {
			return c, fmt.Errorf("session: %w", err)
		}
		c.Servers[i] = addr
	}
	var err error
	if c.Chroot, err = cleanChroot(c.Chroot); err != nil {
		return c, fmt.Errorf("session: %w", err)
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	if c.Timeout < minTimeout || c.Timeout > 24*time.Hour {
		return c, fmt.Errorf("session: timeout %s is out of range", c.Timeout)
	}
	c.MaxFrame = max(cmp.Or(c.MaxFrame, DefaultMaxFrame), minFrame)
	c.MaxReply = max(cmp.Or(c.MaxReply, DefaultMaxReply), minFrame)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}
		c.Dial, c.resolve = d.DialContext, net.DefaultResolver.LookupHost
	}
	if c.host == nil {
		c.host = thisHost
	}
	if c.slept == nil {
		c.slept = slept
	}
	c.Metrics = cmp.Or[Metrics](c.Metrics, noMetrics{})
	c.abilities, c.learned = &abilities{of: map[string]*ability{}}, &learned{}
	return c, nil
}

// Metrics counts the events of sessions. Package prom has one for Prometheus. Sessions call
// it from any goroutine, also while they hold locks, so its methods must not block.
type Metrics interface {
	// State gets the state that the session is in now.
	State(now State)
	// Expired counts a session that expired, Reconnected a connection after the
	// first of a session, RenewalFailed a try to renew the identity.
	Expired()
	Reconnected()
	RenewalFailed()
	// Sent counts a request, and Done its end: a reply, or the end of its connection
	// before that. Took is the time since the request was handed to the connection.
	Sent()
	Done(op string, took time.Duration, lost bool)
	// Bytes counts bytes read from servers, or written to them.
	Bytes(written bool, n int)
	// Watches adds to the number of watches that are set and waited for.
	Watches(delta int)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) State(State)                      {}
func (noMetrics) Expired()                         {}
func (noMetrics) Reconnected()                     {}
func (noMetrics) RenewalFailed()                   {}
func (noMetrics) Sent()                            {}
func (noMetrics) Done(string, time.Duration, bool) {}
func (noMetrics) Bytes(bool, int)                  {}
func (noMetrics) Watches(int)                      {}

// JoinPath joins elements into a path with single slashes between them.
// JoinPath("/", "a", "b") is "/a/b"; JoinPath("/a", "") is "/a".
func JoinPath(elem ...string) string {
	var b strings.Builder
	for _, e := range elem {
		if e = strings.Trim(e, "/"); e != "" {
			b.WriteByte('/')
			b.WriteString(e)
		}
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

// SplitPath returns the parent of path and its last element. The parent of "/a"
// is "/".
func SplitPath(path string) (string, string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", strings.TrimPrefix(path, "/")
	}
	return path[:i], path[i+1:]
}

// ValidatePath returns an error when ZooKeeper does not accept path. A path is absolute,
// has no slash at the end, no empty, "." or ".." element, and no control or private-use
// characters. The error matches ErrBadPath.
func ValidatePath(path string) error {
	if err := jute.CheckPath(path); err != nil {
		return fmt.Errorf("%w: %w", ErrBadPath, err)
	}
	return nil
}

// full returns path below the chroot, as servers know it.
func full(chroot, path string) string {
	switch {
	case chroot == "":
		return path
	case path == "/":
		return chroot
	}
	return chroot + path
}

// strip is the reverse of full.
func strip(chroot, path string) string {
	if chroot == "" {
		return path
	}
	if path == chroot {
		return "/"
	}
	if rest, ok := strings.CutPrefix(path, chroot); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return path
}
