package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/registry"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// get asks and returns the code and the body.
func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// fresh is a client that uses each connection once.
func fresh(t *testing.T) *http.Client {
	t.Helper()
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
}

// TestAttack_IdleConnections: a client that opens connections without end, and asks
// nothing or slowly, locks no other client out, and takes no more places than exist.
func TestAttack_IdleConnections(t *testing.T) {
	s := newServer(&still{http: &HTTPConfig{Listen: "127.0.0.1:0", MaxConnections: 16}})
	addr := listening(t, s)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range 200 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if i%2 == 0 {
			_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: local") // and never more
		}
		if i%50 == 0 {
			if code, _ := get(t, fresh(t), "http://"+addr+"/healthz"); code != http.StatusOK {
				t.Fatalf("after %d connections: got %d", i, code)
			}
		}
	}
	if code, _ := get(t, fresh(t), "http://"+addr+"/healthz"); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
	closed := 0
	eventually(t, "the end of those without a place", func() bool {
		closed = 0
		for _, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
				closed++
			}
		}
		return closed >= 200-16
	})
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // as net returns it
	return ok && e.Timeout()
}

// TestAttack_Streams: streams leave room for clients that ask for a page. The answer to
// one stream too many says so.
func TestAttack_Streams(t *testing.T) {
	s := newServer(&still{http: &HTTPConfig{Listen: "127.0.0.1:0", MaxConnections: 8}})
	addr := listening(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open, refused := 0, 0
	for range 8 {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/live", nil)
		resp, err := fresh(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			open++
		} else {
			refused++
		}
	}
	if open != 6 || refused != 2 {
		t.Errorf("%d streams were opened, %d refused; want 6 and 2", open, refused)
	}
	if code, _ := get(t, fresh(t), "http://"+addr+"/healthz"); code != http.StatusOK {
		t.Errorf("beside the streams: got %d", code)
	}
	// All places serve somebody: the next one is refused at once.
	c := &connections{max: func() int { return 1 }, open: map[net.Conn]time.Time{}}
	one, _ := net.Pipe()
	two, _ := net.Pipe()
	if !c.admit(one) {
		t.Fatal("the first one was refused")
	}
	c.state(one, http.StateActive)
	if c.admit(two) {
		t.Error("a connection that is being served lost its place")
	}
	c.state(one, http.StateIdle)
	if !c.admit(two) {
		t.Error("an idle connection kept its place")
	}
}

func TestMostConnections(t *testing.T) {
	if n := mostConnections(0); n > DefaultMaxConnections || n < fewestConnections {
		t.Errorf("got %d", n)
	}
	if n := mostConnections(6); n != 6 {
		t.Errorf("got %d, want 6", n)
	}
}

const secret = "hunter2"

// leaky is an agent with a secret wherever a command may have put one.
func leaky(whole bool) *still {
	return &still{
		http: &HTTPConfig{Listen: "127.0.0.1:0", ShowOutput: whole},
		status: show.Status{
			Conditions: []show.Condition{
				{Code: "template-failed", Subject: "web", Text: "check: nginx: exit status 3: " + secret, Exit: 3},
				{Code: "reload-failed", Subject: "web", Text: secret},
				{Code: "service-critical", Subject: "web", Text: secret},
				{Code: "hook-failed", Subject: "h", Text: secret},
				{Code: "rollout-failed", Subject: "c", Text: secret},
				{Code: "restore-failed", Subject: "c", Text: secret},
				{Code: "zookeeper-unreachable", Text: "connection refused"},
			},
			Services: []registry.ServiceStatus{{Name: "web", Checks: []registry.CheckStatus{{Name: "exec", Results: 1, Output: secret}}}},
			Templates: []show.TemplateStatus{{
				Name: "web", State: "failed", Stage: "check", Error: secret, LastReload: &show.ReloadStatus{Code: 3, Error: secret},
			}},
			Hooks: []show.HookStatus{{Name: "h", Command: "backup --password " + secret, Runs: []hook.Run{{Code: 3, State: "failed", Error: secret, Output: secret}}}},
			Execs: []show.ExecStatus{{Name: "p", State: "exited", Code: 3, Error: secret}},
		},
		preview: func(string) ([]FileDiff, error) {
			return []FileDiff{{Path: "/etc/web.conf", Lines: []string{"+password " + secret}}}, nil
		},
	}
}

var leaks = []string{"/", "/services", "/templates", "/rollouts", "/locks", "/timeline", "/agent", "/status", "/hooks", "/events", "/fleet", "/members", "/metrics"}

// TestAttack_OutputOfCommands: a local user reads everything that the listener
// serves, and finds no output, no argument and no pending diff. The admin socket,
// and the page of `show_output = true`, have them.
func TestAttack_OutputOfCommands(t *testing.T) {
	for _, whole := range []bool{false, true} {
		src := leaky(whole)
		s := newServer(src)
		s.Socket = filepath.Join(testhelp.ShortDir(t), "s")
		for _, e := range []event.Event{
			{Kind: "apply-failed", Subject: "web", Text: secret},
			{Kind: "hook-failed", Subject: "h", Text: secret},
			{Kind: "condition-opened", Subject: "service-critical web", Text: secret},
			{Kind: "condition-opened", Subject: "drift f", Text: "other words"},
		} {
			s.Events.Add(e)
		}
		addr := listening(t, s)
		found := 0
		for _, path := range leaks {
			_, body := get(t, fresh(t), "http://"+addr+path)
			if strings.Contains(body, secret) {
				found++
				if !whole {
					t.Errorf("%s shows it:\n%s", path, body)
				}
			}
			if path == "/events" && !strings.Contains(body, "other words") {
				t.Errorf("%s hides what is for everybody: %s", path, body)
			}
		}
		if whole && found < 5 {
			t.Errorf("show_output: only %d documents have it", found)
		}
		var st show.Status
		if err := NewClient(s.Socket).Get(t.Context(), "/status", &st); err != nil {
			t.Fatal(err)
		}
		if st.Conditions[0].Text == "" || !strings.Contains(st.Conditions[0].Text, secret) || st.Hooks[0].Runs[0].Output != secret || st.Services[0].Checks[0].Output != secret {
			t.Errorf("the admin socket does not have it: %+v", st)
		}
		if src.status.Hooks[0].Runs[0].Output != secret || src.status.Templates[0].LastReload.Error != secret {
			t.Error("what the agent keeps was changed")
		}
		if !whole {
			resp, err := http.Get("http://" + addr + "/events?follow=1")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for n := 0; n < 4 && lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "data: ") {
					n++
				}
				if strings.Contains(lines.Text(), secret) {
					t.Errorf("the stream shows it: %s", lines.Text())
				}
			}
		}
	}
}

// TestCatalog_OutputIsHidden: every code whose text is hidden is known to be.
func TestCatalog_OutputIsHidden(t *testing.T) {
	for _, e := range condition.Kinds() {
		c := show.Condition{Code: e.Code, Text: secret, Exit: 7}
		if got := withoutOutput(c); e.Output == strings.Contains(got.Text, secret) {
			t.Errorf("%s: got %q", e.Code, got.Text)
		}
	}
}

// TestAttack_Previews: a thousand anonymous requests render a template once.
func TestAttack_Previews(t *testing.T) {
	src := leaky(true)
	renders := 0
	src.preview = func(string) ([]FileDiff, error) { renders++; return nil, nil }
	h := newServer(src)
	addr := listening(t, h)
	for range 50 {
		if code, _ := get(t, http.DefaultClient, "http://"+addr+"/templates"); code != http.StatusOK {
			t.Fatalf("got %d", code)
		}
	}
	if renders != 1 {
		t.Errorf("rendered %d times", renders)
	}
}
