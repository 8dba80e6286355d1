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
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
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

// Client talks to the agent of this host over its admin socket.
type Client struct {
	http *http.Client
	path string
}

// NewClient returns a client for the socket. It does no I/O.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, path: socket}
}

// ErrNoAgent says that no agent listens on the socket.
var ErrNoAgent = errors.New("no agent is running")

// Get asks for a path and decodes the JSON answer into v.
func (c *Client) Get(ctx context.Context, path string, v any) error {
	return c.do(ctx, http.MethodGet, path, nil, v)
}

// Post orders something.
func (c *Client) Post(ctx context.Context, path string, args url.Values) error {
	return c.do(ctx, http.MethodPost, path, args, nil)
}

// Status asks for the status.
func (c *Client) Status(ctx context.Context) (*show.Status, error) {
	var s show.Status
	if err := c.Get(ctx, "/status", &s); err != nil {
		return nil, err
	}
	return &s, nil
}

func (c *Client) request(ctx context.Context, method, path string, args url.Values) (*http.Response, error) {
	body := map[string]string{}
	for k := range args {
		body[k] = args.Get(k)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return nil, fmt.Errorf("%w on %s: %w", ErrNoAgent, c.path, op.Err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		var e struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(text, &e) == nil && e.Error != "" {
			return nil, errors.New(e.Error)
		}
		return nil, fmt.Errorf("agent answered %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return resp, nil
}

func (c *Client) do(ctx context.Context, method, path string, args url.Values, v any) error {
	resp, err := c.request(ctx, method, path, args)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if v == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// Raw asks for a path and returns the answer as it is.
func (c *Client) Raw(ctx context.Context, path string) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, 64<<20))
}

// Events calls fn for each event after seq, and continues with new ones until
// ctx ends, the agent goes, or fn returns false. Without follow it returns
// after the present ones.
func (c *Client) Events(ctx context.Context, seq int64, follow bool, fn func(event.Event) bool) error {
	if !follow {
		var list []event.Event
		if err := c.Get(ctx, fmt.Sprintf("/events?since=%d", seq), &list); err != nil {
			return err
		}
		for _, e := range list {
			if !fn(e) {
				break
			}
		}
		return nil
	}
	resp, err := c.request(ctx, http.MethodGet, fmt.Sprintf("/events?follow=1&since=%d", seq), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e event.Event
		if err := json.Unmarshal(data, &e); err != nil || !fn(e) {
			return err
		}
	}
	return lines.Err()
}

// WaitGone waits until no agent listens on the socket any more.
func (c *Client) WaitGone(ctx context.Context) error {
	for !errors.Is(c.Get(ctx, "/healthz", nil), ErrNoAgent) {
		if !pace.Sleep(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}
