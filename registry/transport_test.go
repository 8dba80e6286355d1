package registry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// webMember starts a server that answers with its name, the Host header and the
// body that it got.
func webMember(t *testing.T, name string, handler http.HandlerFunc) (view.Member, *httptest.Server) {
	t.Helper()
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = io.WriteString(w, name+" "+r.Host+" "+r.URL.Path+" "+string(body))
		}
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	n, _ := strconv.Atoi(port)
	return view.Member{Name: name, Host: host, Port: n, Weight: 1, Status: view.StatusUp}, s
}

// transportOf is a client of members. Its connections end with the test.
func transportOf(t *testing.T, members ...view.Member) (*http.Client, *Provider) {
	t.Helper()
	p := NewProvider(ProviderConfig{})
	p.Update(&view.Group{Members: members})
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: &Transport{Provider: p, Base: base}}, p
}

func ask(c *http.Client, req *http.Request) (string, error) {
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func newRequest(t *testing.T, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://api/path", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestTransport_AsksAnotherMember(t *testing.T) {
	dead, s := webMember(t, "dead", nil)
	s.Close()
	good, _ := webMember(t, "good", nil)
	c, _ := transportOf(t, dead, good)
	for range 4 {
		// Nothing was sent over a connection that could not be made.
		got, err := ask(c, newRequest(t, http.MethodPost, strings.NewReader("body")))
		if err != nil || got != "good api /path body" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	c, _ = transportOf(t)
	if _, err := ask(c, newRequest(t, http.MethodGet, nil)); !errors.Is(err, ErrNoMember) {
		t.Errorf("without members: %v", err)
	}
}

// A request that may have been carried out is not sent again, unless it may be.
func TestTransport_RepeatsWhatMayBeRepeated(t *testing.T) {
	for _, c := range []struct {
		name, method, key string
		body              io.Reader
		repeats           bool
	}{
		{"a reading", http.MethodGet, "", nil, true},
		{"a replacement", http.MethodPut, "", strings.NewReader("x"), true},
		{"an order", http.MethodPost, "", strings.NewReader("x"), false},
		{"an order with a key", http.MethodPost, "1", strings.NewReader("x"), true},
		{"a body that is gone", http.MethodPut, "", io.NopCloser(strings.NewReader("x")), false},
	} {
		var hits atomic.Int32
		cut := func(http.ResponseWriter, *http.Request) {
			hits.Add(1)
			panic(http.ErrAbortHandler) // The connection ends without an answer.
		}
		one, _ := webMember(t, "one", cut)
		two, _ := webMember(t, "two", cut)
		three, _ := webMember(t, "three", cut)
		client, p := transportOf(t, one, two, three)
		req := newRequest(t, c.method, c.body)
		if c.key != "" {
			req.Header.Set("Idempotency-Key", c.key)
		}
		if _, err := ask(client, req); err == nil {
			t.Errorf("%s: no error", c.name)
		}
		if got := hits.Load() > 1; got != c.repeats {
			t.Errorf("%s: sent %d times", c.name, hits.Load())
		}
		if len(p.errors) == 0 {
			t.Errorf("%s: the provider does not know", c.name)
		}
	}
}

// A caller that gives up says nothing about the member, and gets its own error.
func TestTransport_CallerGivesUp(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	m, s := webMember(t, "slow", func(http.ResponseWriter, *http.Request) { close(reached); <-release })
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	c, p := transportOf(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	if _, err := ask(c, newRequest(t, http.MethodGet, nil).WithContext(ctx)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if len(p.errors)+len(p.down) > 0 {
		t.Error("the member is blamed")
	}
}

// Members come and go under load: no request fails.
func TestTransport_MembersComeAndGo(t *testing.T) {
	testhelp.InTurn(t, 2)
	var all []view.Member
	for i := range 4 {
		m, _ := webMember(t, strconv.Itoa(i), nil)
		all = append(all, m)
	}
	c, p := transportOf(t, all...)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := ask(c, newRequest(t, http.MethodPost, strings.NewReader("x"))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range testhelp.Rounds(12, 50) {
		left := slices.Clone(all)
		left[i%4].Status = view.StatusDraining
		p.Update(&view.Group{Members: left})
		for range 20 {
			if _, err := ask(c, newRequest(t, http.MethodGet, nil)); err != nil {
				t.Error(err)
			}
		}
	}
	close(done)
	wg.Wait()
}
