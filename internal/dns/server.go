package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/view"
)

// Bounds of the listener.
const (
	maxUDP       = 1232 // bytes of an answer: passes without fragments (DNS flag day 2020)
	maxTCP       = 64   // connections at once
	maxTCPAsked  = 1024 // queries of one connection
	tcpIdle      = 8 * time.Second
	ioTimeout    = 2 * time.Second
	answerWithin = 5 * time.Second // a query with all its forwarding
)

// Config is the dns block.
type Config struct {
	Listen      string // host:port, for UDP and TCP
	Domain      string // such as "zkagent."
	TTL         time.Duration
	Recursors   []string // host:port of servers for names that are not ours
	AllowRemote bool
}

// State is one published state of the agent.
type State struct {
	Key      any // comparable; differs when the state does
	View     view.View
	Declared []view.Source // of the settings
}

// Server answers DNS queries. Its methods may be called concurrently.
type Server struct {
	cfg     Config
	domain  string // canonical
	ttl     uint32
	state   func() State
	metrics *Metrics
	log     *slog.Logger
	forward *forwarder
	limit   *limiter

	mu     sync.Mutex // held while a tree is made
	cached atomic.Pointer[cachedTree]

	addr atomic.Pointer[netip.AddrPort] // where it listens, once Run has begun to
	open func()                         // called when it listens; may be nil
}

type cachedTree struct {
	of   any
	tree *tree
}

// New makes a server. state returns the latest state of the agent; it is
// called for each query and must be cheap.
func New(cfg Config, state func() State, metrics *Metrics, log *slog.Logger) (*Server, error) {
	if _, ok := dns.IsDomainName(cfg.Domain); !ok || cfg.Domain == "" || cfg.Domain == "." {
		return nil, fmt.Errorf("dns: %q is not a domain", cfg.Domain)
	}
	return &Server{
		cfg: cfg, domain: dns.CanonicalName(cfg.Domain), ttl: uint32(min(max(cfg.TTL, 0), 24*time.Hour) / time.Second),
		state: state, metrics: metrics, log: log,
		forward: &forwarder{
			recursors: cfg.Recursors, slots: make(chan struct{}, maxForwarded), known: map[hostKey]hostAddrs{},
			udp: dns.Client{Net: "udp", Timeout: forwardTimeout, UDPSize: maxUDP}, tcp: dns.Client{Net: "tcp", Timeout: forwardTimeout},
		},
		limit: &limiter{buckets: map[netip.Prefix]*bucket{}},
	}, nil
}

// Addr returns the address of the server; the zero value before it listens.
func (s *Server) Addr() netip.AddrPort { return *cmp.Or(s.addr.Load(), &netip.AddrPort{}) }

// Run listens and answers until ctx ends. It returns nil then, and the error
// of a listener that cannot be opened or that broke.
func (s *Server) Run(ctx context.Context) error {
	packets, conns, err := listen(ctx, s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	addr, _ := netip.ParseAddrPort(packets.LocalAddr().String())
	s.addr.Store(&addr)
	defer s.addr.Store(nil)
	if s.open != nil {
		s.open()
	}
	base, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) { s.serve(base, w, r) })
	servers := []*dns.Server{
		{PacketConn: packets, Handler: handler, UDPSize: dns.MaxMsgSize, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout},
		{
			Listener: &capped{Listener: conns, most: maxTCP, open: map[*cappedConn]time.Time{}}, Handler: handler, MaxTCPQueries: maxTCPAsked, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
			IdleTimeout: func() time.Duration { return tcpIdle },
		},
	}
	var wg sync.WaitGroup
	for _, srv := range servers {
		wg.Go(func() { cancel(srv.ActivateAndServe()) })
	}
	<-base.Done()
	_ = packets.Close()
	_ = conns.Close()
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("dns: the listener broke: %w", context.Cause(base))
}

// listen opens UDP and TCP on one address. Port 0 takes a port that is free
// for both.
func listen(ctx context.Context, address string) (net.PacketConn, net.Listener, error) {
	var lc net.ListenConfig
	var errs error
	for range 10 {
		conns, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, nil, err
		}
		packets, err := lc.ListenPacket(ctx, "udp", conns.Addr().String())
		if err == nil {
			return packets, conns, nil
		}
		errs = errors.Join(errs, err, conns.Close())
		if _, port, _ := net.SplitHostPort(address); port != "0" {
			break
		}
	}
	return nil, nil, errs
}

func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	remote, _ := netip.ParseAddrPort(w.RemoteAddr().String())
	udp := w.LocalAddr().Network() == "udp"
	size, most := dns.MaxMsgSize, maxRecordsTCP
	if udp {
		size, most = udpSize(r), maxRecordsUDP
	}
	m, group := s.reply(ctx, r, most, func() bool { return udp && !s.limit.allow(remote.Addr(), time.Now()) })
	if m == nil {
		return
	}
	m.Truncate(size)
	if err := w.WriteMsg(m); err != nil {
		s.log.Debug("cannot send a DNS answer", "to", remote.String(), "err", err)
	}
	s.metrics.queries.WithLabelValues(group, cmp.Or(dns.RcodeToString[m.Rcode], "other")).Inc()
}

// udpSize returns the largest size of an answer over UDP.
func udpSize(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		return min(max(int(opt.UDPSize()), dns.MinMsgSize), maxUDP)
	}
	return dns.MinMsgSize
}

// reply makes the answer to a query; nil: no answer. limited reports that the
// source asks too fast. Such a source gets an empty, truncated answer and may ask
// over TCP.
func (s *Server) reply(ctx context.Context, r *dns.Msg, most int, limited func() bool) (*dns.Msg, string) {
	if r.Response {
		return nil, ""
	}
	if len(r.Question) != 1 {
		return new(dns.Msg).SetRcodeFormatError(r), ""
	}
	m := new(dns.Msg).SetReply(r)
	m.Compress = true
	m.RecursionAvailable = s.forward.enabled()
	if opt := r.IsEdns0(); opt != nil {
		m.SetEdns0(maxUDP, false)
		if opt.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			return m, ""
		}
	}
	if limited() {
		m.Truncated = true
		return m, ""
	}
	q := r.Question[0]
	switch {
	case r.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
	case q.Qclass != dns.ClassINET || q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR:
		m.Rcode = dns.RcodeRefused
	case dns.IsSubDomain(s.domain, dns.CanonicalName(q.Name)):
		return m, s.answer(ctx, s.tree(), q, m, most)
	case s.forward.enabled() && r.RecursionDesired:
		if got := s.forward.ask(ctx, r); got != nil {
			got.Id, got.Compress = r.Id, true
			return got, ""
		}
		m.Rcode = dns.RcodeServerFailure
	default:
		m.Rcode = dns.RcodeRefused
	}
	return m, ""
}

// tree returns the prepared view. It prepares unchanged groups only once.
func (s *Server) tree() *tree {
	now := s.state()
	if c := s.cached.Load(); c != nil && c.of == now.Key {
		return c.tree
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := cmp.Or(s.cached.Load(), &cachedTree{tree: &tree{}})
	if old.of != nil && old.of == now.Key {
		return old.tree
	}
	c := &cachedTree{of: now.Key, tree: newTree(&now.View, now.Declared, old.tree)}
	s.cached.Store(c)
	return c.tree
}

// Ask asks the server at an address, over udp or tcp, whether it answers for the
// domain. An error says what it does instead.
func Ask(ctx context.Context, network, address, domain string) error {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(domain), dns.TypeSOA)
	a, _, err := (&dns.Client{Net: network}).ExchangeContext(ctx, q, address)
	if err != nil {
		return fmt.Errorf("it does not answer over %s: %w", network, err)
	}
	if a.Rcode != dns.RcodeSuccess || !a.Authoritative || len(a.Answer) == 0 {
		return fmt.Errorf("it answers over %s, but not for %s: %s", network, dns.Fqdn(domain), dns.RcodeToString[a.Rcode])
	}
	return nil
}

// Metrics count the queries.
type Metrics struct {
	queries *prometheus.CounterVec
}

// NewMetrics registers the metrics of the DNS listener.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{queries: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "zkagent_dns_queries_total",
		Help: "DNS queries answered, by group (empty: no group) and response code.",
	}, []string{"group", "rcode"})}
	reg.MustRegister(m.queries)
	return m
}

// listenAgain is the pause before another try to open a listener.
const listenAgain = 10 * time.Second

// Keeper keeps the listener as the settings want it. If it cannot open the
// listener, it reports the error and tries again.
type Keeper struct {
	Want    func() *Config // of the settings in use; nil: no listener
	State   func() State
	Metrics *Metrics
	Logger  *slog.Logger
	// Failed is called with each failure and, with nil, when the listener is as
	// the settings want it.
	Failed func(address string, err error)

	changed chan struct{} // size 1
	server  atomic.Pointer[Server]
}

// NewKeeper makes a keeper; the caller sets its fields before Run.
func NewKeeper() *Keeper { return &Keeper{changed: make(chan struct{}, 1)} }

// Changed says that the settings may want another listener. It does not wait.
func (k *Keeper) Changed() { pace.Notify(k.changed) }

// Run follows the settings until ctx ends. It closes the listener before it
// returns.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		cfg := k.Want()
		serving, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { k.serve(serving, cfg) })
		for ctx.Err() == nil && reflect.DeepEqual(k.Want(), cfg) {
			select {
			case <-k.changed:
			case <-ctx.Done():
			}
		}
		cancel()
		wg.Wait()
	}
}

// serve keeps one listener open until ctx ends; nil: none.
func (k *Keeper) serve(ctx context.Context, cfg *Config) {
	if cfg == nil {
		k.Failed("", nil)
		return
	}
	for ctx.Err() == nil {
		s, err := New(*cfg, k.State, k.Metrics, k.Logger)
		if err == nil {
			s.open = func() { k.Failed(cfg.Listen, nil) }
			k.server.Store(s)
			err = s.Run(ctx)
			k.server.Store(nil)
		}
		if ctx.Err() != nil {
			return
		}
		k.Failed(cfg.Listen, err)
		pace.Sleep(ctx, listenAgain)
	}
}
