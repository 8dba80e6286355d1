package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/zkagent/zkagent/view"
)

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
			closeBody(req)
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

// closeBody closes a body that is not sent, as a RoundTripper has to.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
