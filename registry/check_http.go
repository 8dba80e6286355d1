package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
)

// maxBody is how much of a body is read, in bytes.
const maxBody = 64 << 10

// httpCheck opens a new connection for each request. A kept connection would still
// work when the server accepts no new ones.
type httpCheck struct {
	cfg      CheckConfig
	statuses []statusRange
	body     *regexp.Regexp // nil: any
}

func newHTTPCheck(c CheckConfig) (Check, error) {
	statuses, err := parseStatuses(c.Status)
	if err != nil {
		return nil, err
	}
	check := &httpCheck{cfg: c, statuses: statuses}
	if c.Body != "" {
		if check.body, err = regexp.Compile(c.Body); err != nil {
			return nil, fmt.Errorf("body: %w", err)
		}
	}
	return check, nil
}

func (c *httpCheck) Run(ctx context.Context) (string, error) {
	resp, body, err := c.fetch(ctx) //nolint:bodyclose // fetch closes it.
	if err != nil {
		return "", err
	}
	return c.judge(resp, body)
}

// fetch returns the answer and its body, which is closed.
func (c *httpCheck) fetch(ctx context.Context) (*http.Response, []byte, error) {
	req, err := c.request(ctx)
	if err != nil {
		return nil, nil, err
	}
	transport, err := c.transport()
	if err != nil {
		return nil, nil, err
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	if !c.cfg.Follow {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: read body: %w", resp.Status, err)
	}
	return resp, body, nil
}

func (c *httpCheck) request(ctx context.Context) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, cmp.Or(c.cfg.Method, http.MethodGet), c.cfg.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("User-Agent", "zkagent-check")
	for k, v := range c.cfg.Headers {
		if http.CanonicalHeaderKey(k) == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	return req, nil
}

func (c *httpCheck) transport() (*http.Transport, error) {
	tlsConfig, err := c.cfg.TLS.Client()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext: new(net.Dialer).DialContext, TLSClientConfig: tlsConfig, DisableKeepAlives: true,
		DisableCompression: true, MaxResponseHeaderBytes: maxBody, ForceAttemptHTTP2: true,
	}, nil
}

func (c *httpCheck) judge(resp *http.Response, body []byte) (string, error) {
	output := resp.Status + "\n" + string(body[:min(len(body), maxOutput)])
	good := false
	for _, r := range c.statuses {
		good = good || r.from <= resp.StatusCode && resp.StatusCode <= r.to
	}
	if !good {
		return output[len(resp.Status)+1:], fmt.Errorf("the answer is %s", resp.Status)
	}
	if c.body != nil && !c.body.Match(body) {
		return output, errors.New("body does not match")
	}
	return output, nil
}
