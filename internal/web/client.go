package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/show"
)

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
