package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"google.golang.org/protobuf/encoding/protowire"
)

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
