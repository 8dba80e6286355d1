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
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxBody is how much of a body is read, in bytes.
const maxBody = 64 << 10

// httpCheck sends one HTTP request and judges the answer. It opens a new connection for
// each request. A kept connection would still work when the server accepts no new ones.
type httpCheck struct {
	cfg       CheckConfig
	body      []byte          // of the request
	protocols *http.Protocols // nil: what the server offers
	judge     func(resp *http.Response, body []byte) (output string, err error)
}

func (c *httpCheck) Run(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, cmp.Or(c.cfg.Method, http.MethodGet), c.cfg.URL, bytes.NewReader(c.body))
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("User-Agent", "zkagent-check")
	for k, v := range c.cfg.Headers {
		if http.CanonicalHeaderKey(k) == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	transport := &http.Transport{
		DialContext: new(net.Dialer).DialContext, DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxBody, ForceAttemptHTTP2: true, Protocols: c.protocols,
	}
	if transport.TLSClientConfig, err = c.cfg.TLS.Client(); err != nil {
		return "", err
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	if !c.cfg.Follow {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := client.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL, whose query may hold a secret
	}
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return "", fmt.Errorf("%s: read body: %w", resp.Status, err)
	}
	return c.judge(resp, body)
}

func newHTTPCheck(c CheckConfig) Check {
	statuses, _ := parseStatuses(c.Status) // valid, as all of c
	pattern := regexp.MustCompile(c.Body)
	return &httpCheck{cfg: c, judge: func(resp *http.Response, body []byte) (string, error) {
		output := resp.Status + "\n" + string(body[:min(len(body), maxOutput)])
		good := func(r statusRange) bool { return r.from <= resp.StatusCode && resp.StatusCode <= r.to }
		switch {
		case !slices.ContainsFunc(statuses, good):
			return output[len(resp.Status)+1:], fmt.Errorf("the answer is %s", resp.Status)
		case !pattern.Match(body):
			return output, errors.New("body does not match")
		}
		return output, nil
	}}
}

// newPrometheusCheck returns a check that asks a Prometheus server for figures, and
// compares each with the limits of the check. No figure at all is a failure, because it
// does not show that all is well.
func newPrometheusCheck(c CheckConfig) Check {
	c.URL = strings.TrimSuffix(c.URL, "/") + "/api/v1/query?query=" + url.QueryEscape(c.Query)
	return &httpCheck{cfg: c, judge: func(resp *http.Response, body []byte) (string, error) {
		var answer struct {
			Error string `json:"error"`
			Data  struct {
				Result json.RawMessage `json:"result"`
			} `json:"data"`
		}
		if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK {
			return cmp.Or(answer.Error, string(body[:min(len(body), maxOutput)])), fmt.Errorf("the answer is %s", resp.Status)
		}
		var vector []figure
		var scalar figure
		if json.Unmarshal(answer.Data.Result, &vector) != nil {
			if json.Unmarshal(answer.Data.Result, &scalar.Value) != nil {
				return "", fmt.Errorf("result of %s: neither a vector nor a scalar", c.Query)
			}
			vector = []figure{scalar}
		}
		return c.judgeFigures(vector)
	}}
}

// figure is the value of one series.
type figure struct {
	Metric map[string]string  `json:"metric"`
	Value  [2]json.RawMessage `json:"value"` // the time, and the value as a string
}

func (c CheckConfig) judgeFigures(figures []figure) (string, error) {
	if len(figures) == 0 {
		return "", fmt.Errorf("%s has no data", c.Query)
	}
	var output strings.Builder
	for _, f := range figures {
		name := c.Query
		if len(f.Metric) > 0 {
			labels, _ := json.Marshal(f.Metric) // texts can always be encoded
			name += " " + string(labels)
		}
		text := strings.Trim(string(f.Value[1]), `"`)
		v, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil:
			return output.String(), fmt.Errorf("%s is %q", name, text)
		case c.Max != nil && !(v <= *c.Max): // so that NaN fails
			return output.String(), fmt.Errorf("%s is %s, which is not at most %g", name, text, *c.Max)
		case c.Min != nil && !(v >= *c.Min):
			return output.String(), fmt.Errorf("%s is %s, which is not at least %g", name, text, *c.Min)
		}
		fmt.Fprintf(&output, "%s is %s\n", name, text)
	}
	return output.String(), nil
}

// newGRPCCheck returns a check that calls grpc.health.v1.Health/Check. The request has one
// string field and the answer one number, so a plain HTTP/2 client is enough. Without TLS
// it uses HTTP/2 with prior knowledge; with TLS it negotiates.
func newGRPCCheck(c CheckConfig) Check {
	scheme, protocols := "http", new(http.Protocols)
	if c.TLS != nil {
		scheme = "https"
	}
	protocols.SetHTTP2(c.TLS != nil)
	protocols.SetUnencryptedHTTP2(c.TLS == nil)
	c.URL, c.Method, c.Follow = scheme+"://"+c.Address+"/grpc.health.v1.Health/Check", http.MethodPost, false
	c.Headers = map[string]string{"Content-Type": "application/grpc", "TE": "trailers"}
	// HealthCheckRequest{string service = 1} in one frame: an uncompressed flag, the length
	// and the message.
	var message []byte
	if c.Service != "" {
		message = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), c.Service)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // #nosec G115 -- a few bytes
	return &httpCheck{cfg: c, body: append(frame, message...), protocols: protocols, judge: judgeGRPC}
}

// servingNames are the values of HealthCheckResponse.ServingStatus.
var servingNames = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

const grpcServing = 1

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

// parseHealth reads HealthCheckResponse{ServingStatus status = 1} out of one
// frame; unknown fields are skipped.
func parseHealth(frame []byte) (uint64, error) {
	if len(frame) < 5 || frame[0] != 0 || int64(binary.BigEndian.Uint32(frame[1:])) != int64(len(frame)-5) {
		return 0, errors.New("answer is not a health check response")
	}
	value, kind, err := messageField(frame[5:], "1")
	if err != nil || kind != protowire.VarintType {
		return 0, err
	}
	status, _ := protowire.ConsumeVarint(value)
	return status, nil
}
