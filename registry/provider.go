package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/view"
)

// ErrNoMember says that a provider has no member that may get traffic.
var ErrNoMember = errors.New("no member may get traffic")

// Strategy is how a [Provider] chooses.
type Strategy int

// Strategies.
const (
	RoundRobin Strategy = iota // one after the other
	Random                     // by weight
	Sticky                     // the same one for as long as it may get traffic
)

// ProviderConfig describes a provider. The zero value of a field means its default.
type ProviderConfig struct {
	Strategy Strategy // RoundRobin by default
	// Errors is the number of errors within ErrorWindow that makes a member
	// left out for DownFor; 0: 2.
	Errors      int
	ErrorWindow time.Duration // how long an error counts; 0: 30 s
	DownFor     time.Duration // how long a member with errors is left out; 0: 30 s
}

// Provider chooses members of a group for a client, as Curator's ServiceProvider
// does. Give [Provider.Update] to [Group.Run]. It may choose members that the guard
// holds; NoteError leaves out the dead ones. Its methods may be called from any
// goroutine.
type Provider struct {
	cfg ProviderConfig

	mu     sync.Mutex // guards the fields below
	list   []view.Member
	next   int
	chosen memberKey // sticky
	errors map[memberKey][]time.Time
	down   map[memberKey]time.Time
}

// NewProvider returns a provider without members.
func NewProvider(cfg ProviderConfig) *Provider {
	cfg.Errors = cmp.Or(max(cfg.Errors, 0), 2)
	cfg.ErrorWindow = cmp.Or(max(cfg.ErrorWindow, 0), 30*time.Second)
	cfg.DownFor = cmp.Or(max(cfg.DownFor, 0), 30*time.Second)
	return &Provider{cfg: cfg, errors: map[memberKey][]time.Time{}, down: map[memberKey]time.Time{}}
}

// Update takes the members of a group.
func (p *Provider) Update(g *view.Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = p.list[:0:0]
	there := map[memberKey]bool{}
	for _, m := range g.Members {
		if m.MayServe() {
			p.list = append(p.list, m)
			there[keyOf(&m)] = true
		}
	}
	for k := range p.errors {
		if !there[k] {
			delete(p.errors, k)
			delete(p.down, k)
		}
	}
}

// Pick chooses a member. If all are left out because of errors, it chooses among
// all of them, because a try is better than giving up. The error is ErrNoMember.
func (p *Provider) Pick() (view.Member, error) { return p.pick(nil) }

// pick is like Pick and prefers members that are not in tried.
func (p *Provider) pick(tried map[memberKey]bool) (view.Member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	usable := p.those(func(k memberKey) bool { return !now.Before(p.down[k]) && !tried[k] })
	if len(usable) == 0 && len(tried) > 0 {
		usable = p.those(func(k memberKey) bool { return !tried[k] })
	}
	if len(usable) == 0 {
		usable = p.list
	}
	if len(usable) == 0 {
		return view.Member{}, ErrNoMember
	}
	switch p.cfg.Strategy {
	case Random:
		return byWeight(usable), nil
	case Sticky:
		if i := slices.IndexFunc(usable, func(m view.Member) bool { return keyOf(&m) == p.chosen }); i >= 0 {
			return usable[i], nil
		}
		m := byWeight(usable)
		p.chosen = keyOf(&m)
		return m, nil
	default:
		p.next++
		return usable[(p.next-1)%len(usable)], nil
	}
}

// those returns the members whose keys fit. The caller holds mu.
func (p *Provider) those(fit func(memberKey) bool) []view.Member {
	return slices.DeleteFunc(slices.Clone(p.list), func(m view.Member) bool { return !fit(keyOf(&m)) })
}

// byWeight chooses at random by weight. It chooses members of weight 0 only if
// there are no others.
func byWeight(list []view.Member) view.Member {
	total := 0
	for _, m := range list {
		total += m.Weight
	}
	if total == 0 {
		return list[rand.IntN(len(list))] // #nosec G404 -- to spread, not to hide
	}
	n := rand.IntN(total) // #nosec G404 -- to spread, not to hide
	for _, m := range list {
		if n -= m.Weight; n < 0 {
			return m
		}
	}
	return list[len(list)-1]
}

// NoteError reports that a request to the member failed.
func (p *Provider) NoteError(m view.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, k := time.Now(), keyOf(&m)
	recent := slices.DeleteFunc(p.errors[k], func(at time.Time) bool { return now.Sub(at) >= p.cfg.ErrorWindow })
	if recent = append(recent, now); len(recent) >= p.cfg.Errors {
		p.down[k] = now.Add(p.cfg.DownFor)
		recent = nil
	}
	p.errors[k] = recent
}

// transportAttempts is how many members one request tries at most.
const transportAttempts = 3

// Transport is an [http.RoundTripper] that sends each request to a member of a
// group. The host of the URL names no server: http://api/path goes to path of the
// member that the provider picks, with "api" as the Host header.
//
// If the connection fails, the request goes to another member, with any method. If
// the request fails later, it goes to another member only if it is idempotent: GET,
// HEAD, OPTIONS, TRACE, PUT, DELETE, or any request with an Idempotency-Key header.
// A body that cannot be read again (no GetBody) is sent once. Transport reports
// each failure to the provider. A response is never a failure, with any status.
type Transport struct {
	Provider *Provider
	// Base sends the requests; nil: http.DefaultTransport. Its proxy settings must
	// exclude the members' addresses.
	Base http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := cmp.Or(t.Base, http.DefaultTransport)
	tried := map[memberKey]bool{}
	var last error
	for range transportAttempts {
		m, err := t.Provider.pick(tried)
		if err != nil {
			if req.Body != nil {
				_ = req.Body.Close() // as a RoundTripper has to
			}
			return nil, errors.Join(last, fmt.Errorf("%s: %w", req.URL.Host, err))
		}
		if tried[keyOf(&m)] {
			break // there is no other member
		}
		tried[keyOf(&m)] = true
		attempt, err := t.request(req, m, last != nil)
		if err != nil {
			return nil, errors.Join(last, err)
		}
		resp, err := base.RoundTrip(attempt)
		if err == nil {
			resp.Request = req
			return resp, nil
		}
		last = fmt.Errorf("member %s: %w", m.Address(), err)
		if req.Context().Err() != nil {
			return nil, last // the caller gave up: do not blame the member
		}
		t.Provider.NoteError(m)
		if !mayRepeat(req, err) {
			break
		}
	}
	return nil, last
}

func (t *Transport) request(req *http.Request, m view.Member, again bool) (*http.Request, error) {
	attempt := req.Clone(req.Context())
	attempt.URL.Host = m.Address()
	attempt.Host = cmp.Or(attempt.Host, req.URL.Host)
	if again && req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		attempt.Body = body
	}
	return attempt, nil
}

// mayRepeat reports whether a request that failed may go to another member.
func mayRepeat(req *http.Request, err error) bool {
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return false // it was read
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return true // nothing was sent
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return !errors.Is(err, context.Canceled)
	}
	return req.Header.Get("Idempotency-Key") != "" || req.Header.Get("X-Idempotency-Key") != ""
}
