package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
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

// prometheusCheck asks a Prometheus server for figures, and compares each with the limits
// of the check. No figure at all is a failure, because it does not show that all is well.
type prometheusCheck struct {
	httpCheck
}

func newPrometheusCheck(c CheckConfig) Check {
	c.URL = strings.TrimSuffix(c.URL, "/") + "/api/v1/query?query=" + url.QueryEscape(c.Query)
	return &prometheusCheck{httpCheck{cfg: c}}
}

func (c *prometheusCheck) Run(ctx context.Context) (string, error) {
	resp, body, err := c.fetch(ctx) //nolint:bodyclose // fetch closes it.
	if err != nil {
		return "", err
	}
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK {
		return cmp.Or(answer.Error, string(body[:min(len(body), maxOutput)])), fmt.Errorf("the answer is %s", resp.Status)
	}
	figures, err := parseFigures(answer.Data.Result)
	if err != nil {
		return "", fmt.Errorf("result of %s: %w", c.cfg.Query, err)
	}
	return c.judge(figures)
}

// figure is the value of one series.
type figure struct {
	Metric map[string]string  `json:"metric"`
	Value  [2]json.RawMessage `json:"value"` // the time, and the value as a string
}

// parseFigures reads a vector, or a scalar.
func parseFigures(result []byte) ([]figure, error) {
	var figures []figure
	if json.Unmarshal(result, &figures) == nil {
		return figures, nil
	}
	var one figure
	if err := json.Unmarshal(result, &one.Value); err != nil {
		return nil, errors.New("neither a vector nor a scalar")
	}
	return []figure{one}, nil
}

func (c *prometheusCheck) judge(figures []figure) (string, error) {
	if len(figures) == 0 {
		return "", fmt.Errorf("%s has no data", c.cfg.Query)
	}
	var output strings.Builder
	var bad error
	for _, f := range figures {
		name := c.cfg.Query
		if len(f.Metric) > 0 {
			labels, _ := json.Marshal(f.Metric) // texts can always be encoded
			name += " " + string(labels)
		}
		text := strings.Trim(string(f.Value[1]), `"`)
		v, err := strconv.ParseFloat(text, 64)
		switch {
		case bad != nil:
		case err != nil:
			bad = fmt.Errorf("%s is %q", name, text)
		case c.cfg.Max != nil && !(v <= *c.cfg.Max): // so that NaN fails
			bad = fmt.Errorf("%s is %s, which is not at most %g", name, text, *c.cfg.Max)
		case c.cfg.Min != nil && !(v >= *c.cfg.Min):
			bad = fmt.Errorf("%s is %s, which is not at least %g", name, text, *c.cfg.Min)
		}
		if bad == nil {
			fmt.Fprintf(&output, "%s is %s\n", name, text)
		}
	}
	return output.String(), bad
}

// grpcCheck calls grpc.health.v1.Health/Check. The request has one string field and
// the answer one number, so a plain HTTP/2 client is enough. Without TLS it uses
// HTTP/2 with prior knowledge; with TLS it negotiates.
type grpcCheck struct{ cfg CheckConfig }

// servingNames are the values of HealthCheckResponse.ServingStatus.
var servingNames = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

const grpcServing = 1

func (c grpcCheck) Run(ctx context.Context) (string, error) {
	transport, scheme, err := c.transport()
	if err != nil {
		return "", err
	}
	defer transport.CloseIdleConnections()
	target := scheme + "://" + c.cfg.Address + "/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(healthRequest(c.cfg.Service)))
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	req.Header.Set("User-Agent", "zkagent-check")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}
	return judgeGRPC(resp, body)
}

func (c grpcCheck) transport() (*http.Transport, string, error) {
	t := &http.Transport{DialContext: new(net.Dialer).DialContext, Protocols: new(http.Protocols), MaxResponseHeaderBytes: maxBody}
	if c.cfg.TLS == nil {
		t.Protocols.SetUnencryptedHTTP2(true)
		return t, "http", nil
	}
	t.Protocols.SetHTTP2(true)
	var err error
	t.TLSClientConfig, err = c.cfg.TLS.Client()
	return t, "https", err
}

func judgeGRPC(resp *http.Response, body []byte) (string, error) {
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the answer is %s", resp.Status)
	}
	// A call that fails at once has its status in the headers.
	status, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if status == "" {
		status, message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	if text, err := url.PathUnescape(message); err == nil {
		message = text
	}
	if status != "0" {
		return message, fmt.Errorf("grpc status %q: %s", status, clip(message))
	}
	serving, err := parseHealth(body)
	if err != nil {
		return "", err
	}
	name := servingNames[serving]
	if serving != grpcServing {
		return name, fmt.Errorf("service is %s (%d)", name, serving)
	}
	return name, nil
}

// healthRequest is HealthCheckRequest{string service = 1} in one frame: an uncompressed
// flag, the length and the message.
func healthRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), service)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // #nosec G115 -- a few bytes
	return append(frame, message...)
}

// parseHealth reads HealthCheckResponse{ServingStatus status = 1} out of one
// frame; unknown fields are skipped.
func parseHealth(frame []byte) (uint64, error) {
	bad := errors.New("answer is not a health check response")
	if len(frame) < 5 || frame[0] != 0 || int64(binary.BigEndian.Uint32(frame[1:])) != int64(len(frame)-5) {
		return 0, bad
	}
	var status uint64
	for b := frame[5:]; len(b) > 0; {
		number, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return 0, bad
		}
		if number == 1 && kind == protowire.VarintType {
			status, _ = protowire.ConsumeVarint(b[protowire.SizeTag(number):])
		}
		b = b[n:]
	}
	return status, nil
}
