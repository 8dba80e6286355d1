// Package web serves the agent to people and to programs: the page, the JSON
// documents, the metrics, the health checks and the streams of events, on an
// HTTP listener that only reads, and on a unix socket that also takes orders.
// Client is the other end of that socket.
//
// Guarantees: the HTTP listener changes nothing and refuses names and sites that
// are not its own; a client that does not read holds up no other.
//
// Not here: what is shown. The agent implements Source.
package web

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// HTTPConfig is the http block: page, metrics, health.
type HTTPConfig struct {
	Listen string
	// Hosts are further names that the Host header may carry.
	Hosts []string
	// MaxConnections bounds the connections, streams among them; 0: the default.
	MaxConnections int
	// ShowOutput shows what commands print, their arguments, and pending diffs.
	ShowOutput bool
}

// AdminConfig is the admin block.
type AdminConfig struct {
	Socket string // path of the unix socket; empty: none
}

// Source is what the server shows.
type Source interface {
	// show.Status is computed on demand.
	Status() show.Status
	// Members returns the members of every group, as the templates see them.
	Members() map[string][]view.Member
	// GroupNames are the names of the groups: "web", or "SET/CHILD" in a set.
	GroupNames() []string
	// Group returns the latest state of a group; nil before it has reported.
	// False: there is no such group.
	Group(name string) (*view.Group, bool)
	// GroupSet reports whether there is a groups block of that name.
	GroupSet(name string) bool
	// State names the current state, and returns a channel that is closed at
	// the next one.
	State() (string, <-chan struct{})
	// Ping waits until the loop has turned.
	Ping(ctx context.Context) error
	// Ready is closed when the first useful state is reached.
	Ready() <-chan struct{}
	// Ended is closed when the agent's loop has ended.
	Ended() <-chan struct{}
	// Session returns the session, or an error at once without a connection.
	Session(ctx context.Context) (*session.Session, error)
	// Preview says what an apply of a template would change now; it changes
	// nothing.
	Preview(ctx context.Context, name string) ([]FileDiff, error)
	// Blame says where the lines of files come from.
	Blame(ctx context.Context, q blame.Query) ([]*blame.File, error)
	// HTTP is the http block in use; nil: no listener.
	HTTP() *HTTPConfig
}

// Args is the body of an order: a JSON object of strings.
type Args map[string]string

// Order carries out one order.
type Order func(ctx context.Context, args Args) error

// Config is what a Server needs.
type Config struct {
	Source     Source
	ID         string // of the agent
	Socket     string // of the admin socket; empty: none
	Orders     map[string]Order
	Events     *event.Ring
	Conditions *condition.Set
	Metrics    prometheus.Gatherer
	Logger     *slog.Logger
}

// Server serves one agent.
type Server struct {
	Config

	relisten chan struct{} // size 1: the http block may be another
	httpAddr atomic.Value  // string

	// These are read when somebody opens the page.
	followers      atomic.Int64 // open streams of the HTTP listener
	localFollowers atomic.Int64 // open streams of the admin socket
	fleet          cached[Fleet]
	changes        cached[changes]
	lines          cached[[]lineView]
	previews       memo[string, preview]
	answers        memo[[2]string, *groupAnswer]
	configs        memo[string, *cached[configView]]
	samples        samples
}

// New returns a Server; it listens nowhere yet.
func New(c Config) *Server {
	s := &Server{Config: c, relisten: make(chan struct{}, 1)}
	s.previews.most, s.answers.most, s.configs.most = 256, 256, 32
	return s
}

// Changed says that the http block in use may be another.
func (s *Server) Changed() { pace.Notify(s.relisten) }

// settings is the http block in use; empty without one.
func (s *Server) settings() HTTPConfig { return *cmp.Or(s.Source.HTTP(), &HTTPConfig{}) }

// Addr is the address of the HTTP listener, or "" without one.
func (s *Server) Addr() string {
	addr, _ := s.httpAddr.Load().(string)
	return addr
}

// How long one reading of ZooKeeper serves everybody who looks, and how long it may take.
const (
	cacheFresh = 3 * time.Second
	cacheWait  = 4 * time.Second
)

// cached keeps one reading of ZooKeeper for all who look at about the same
// time. It is safe for concurrent use.
type cached[T any] struct {
	mu    sync.Mutex // mu guards everything below, and is held while one reads.
	value T
	err   error
	at    time.Time
}

func (c *cached[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < cacheFresh {
		return c.value, c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cacheWait)
	defer cancel()
	value, err := read(ctx)
	c.at, c.err = time.Now(), err
	if err == nil {
		c.value = value
	}
	return c.value, err
}

// memo keeps one value for each key until its source changes. It is safe for
// concurrent use.
type memo[K comparable, V any] struct {
	most int // values; one too many drops all

	mu   sync.Mutex // mu guards kept, and is held while a value is created.
	kept map[K]made[V]
}

type made[V any] struct {
	of    any // comparable
	value V
}

// get returns the value of the same source, or creates a new one. It keeps no value with
// an error.
func (m *memo[K, V]) get(key K, of any, create func() (V, error)) (V, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if had, ok := m.kept[key]; ok && had.of == of {
		return had.value, nil
	}
	value, err := create()
	if err != nil {
		return value, err
	}
	if m.kept == nil || len(m.kept) >= m.most {
		m.kept = map[K]made[V]{}
	}
	m.kept[key] = made[V]{of, value}
	return value, nil
}
