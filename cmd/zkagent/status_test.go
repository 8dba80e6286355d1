package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// fakeAgent serves a status on a unix socket until the function that it
// returns is called.
func fakeAgent(t *testing.T, path string, h http.Handler) func() {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: limit}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln)
	}()
	stop := sync.OnceFunc(func() {
		_ = s.Close()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// An agent that ends before its answer arrives has left all the same.
func TestLeave_AnswerIsLost(t *testing.T) {
	t.Parallel()
	path, asked := socketPath(t), make(chan struct{})
	var once sync.Once
	stop := fakeAgent(t, path, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(asked) })
		panic(http.ErrAbortHandler)
	}))
	go func() {
		<-asked
		stop()
	}()
	var talk bytes.Buffer
	if code := run([]string{"leave", "--addr", path, "--timeout", "5s"}, strings.NewReader(""), io.Discard, &talk); code != 0 {
		t.Errorf("exit code %d: %s", code, &talk)
	}
}

// socketPath is a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func statusHandler(s *show.Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s) })
}

// troubled is the status of an agent with about everything that can be wrong.
func troubled() *show.Status {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d - time.Minute) }
	return &show.Status{
		Agent:  show.AgentStatus{ID: "web-07", State: "running"},
		Health: fleet.Failing, Summary: "1 template ok, 1 failed; ZooKeeper suspended",
		ZooKeeper: show.ZooKeeperStatus{
			State: "suspended", SessionID: "0x17", Timeout: view.Seconds(10 * time.Second), Since: ago(50 * time.Hour), LastError: "dial: connection refused",
			Reconnects: 3, Watches: 12, Resumed: true,
			Outages: []show.Outage{{}, {Until: ago(60 * time.Hour), Seconds: view.Seconds(42 * time.Second)}},
		},
		Conditions: []show.Condition{
			{Code: "template-failed", Subject: "web", Since: ago(51 * time.Hour), Text: "check: nginx: unknown directive \x1b[2J"},
		},
		Sources: []show.SourceStatus{
			{Kind: "config", Name: "web", Path: "/config/web", Reported: true, Changed: ago(52 * time.Hour), Version: "118", Known: 119, Size: 3},
			{Kind: "group", Name: "api", Path: "/services/api"},
		},
		Services: []registry.ServiceStatus{{
			Name: "api", State: "failed", Address: "10.0.0.1:80", Since: ago(53 * time.Hour), Nodes: []string{"/services/api/m1"},
			Checks: []registry.CheckStatus{{Name: "http", State: registry.Critical, Since: ago(53 * time.Hour), Output: "503 broken\n"}},
		}},
		Templates: []show.TemplateStatus{
			{
				Name: "web", State: "failed", Error: "check: nginx: unknown directive", Files: []string{"/etc/nginx/web.conf"}, Sources: []string{"config.web", "group.api"},
				Version: "117", LastChange: ago(54 * time.Hour),
			},
			{
				Name: "other", State: "ok", Version: "118", LastChange: ago(55 * time.Hour), PendingReload: true, PendingSince: ago(56 * time.Hour),
				LastReload: &show.ReloadStatus{At: ago(57 * time.Hour), Took: view.Seconds(1200 * time.Millisecond), Code: 1, Error: "exit status 1: no space"},
			},
		},
	}
}

// TestStatus_Wide is what an operator reads when things are not well.
func TestStatus_Wide(t *testing.T) {
	const want = `web-07: failing; 1 template ok, 1 failed; ZooKeeper suspended
zookeeper: suspended, session 0x17, timeout 10s, for 2d02h: dial: connection refused; last outage 2d12h ago, it lasted 42s; watches 12, reconnections 3, expired sessions 0, resumed from the previous process
template-failed web: check: nginx: unknown directive ?[2J (for 2d03h)
  in use: The last good files.
  do: ` + "`zkagent status -o wide` has the error with the line of the template, or the output of the check. `zkagent render web --diff` tries it by hand." + `
KIND NAME STATE SINCE DETAIL
service   api         failed   2d05h  10.0.0.1:80; check http: 503 broken
  check   http        critical 2d05h  503 broken
  znode   -           old      -      /services/api/m1
template  web         failed   2d06h
  uses    config.web  old      2d04h  /config/web, version 118 (knows v119), 3 keys
  uses    group.api   waiting  -      /services/api, 0 members
  file    -           -        2d06h  /etc/nginx/web.conf
template  other       ok       2d07h  reload pending for 2d08h; version 118
  reload  -           failed   2d09h  pending for 2d08h; took 1s; exit status 1: no space
config    web         old      2d04h  /config/web, version 118 (knows v119), 3 keys
group     api         waiting  -      /services/api, 0 members
`
	got := statusText(t, troubled(), "wide")
	if squeeze(got) != squeeze(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	short := statusText(t, troubled(), "text")
	for _, line := range []string{"  uses", "  file", "  do:", "watches"} {
		if strings.Contains(short, line) {
			t.Errorf("the short status has %q:\n%s", line, short)
		}
	}
}

// squeeze leaves one space between columns.
func squeeze(s string) string {
	for strings.Contains(s, "  ") {
		s = strings.ReplaceAll(s, "  ", " ")
	}
	return s
}

func statusText(t *testing.T, s *show.Status, output string) string {
	t.Helper()
	var out bytes.Buffer
	g := newGlobals(strings.NewReader(""), &out, t.Output())
	g.Format, g.Color = output, "never"
	if err := printStatus(&g.Console, s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestStatus_Check judges for a monitoring system: word, text and exit code.
func TestStatus_Check(t *testing.T) {
	healthy := func(change func(*show.Status)) http.Handler {
		s := &show.Status{Health: fleet.OK, Summary: "2 templates ok", ZooKeeper: show.ZooKeeperStatus{State: "connected"}}
		change(s)
		return statusHandler(s)
	}
	for name, x := range map[string]struct {
		serve http.Handler
		code  int
		want  string
	}{
		"ok": {healthy(func(*show.Status) {}), 0, "ZKAGENT OK - 2 templates ok\n"},
		"just started": {healthy(func(s *show.Status) {
			s.Templates, s.Summary = []show.TemplateStatus{{Name: "web", State: "waiting"}}, "0 templates ok, 1 waiting"
		}), 1, "ZKAGENT WARNING - 0 templates ok, 1 waiting\n"},
		"outage": {healthy(func(s *show.Status) {
			s.ZooKeeper = show.ZooKeeperStatus{State: "suspended", LastError: "refused"}
			s.Health, s.Conditions = fleet.Degraded, []show.Condition{{Code: "zookeeper-unreachable", Text: "suspended: refused"}}
		}), 1, "ZKAGENT WARNING - zookeeper-unreachable: suspended: refused\n"},
		"condition": {healthy(func(s *show.Status) {
			s.Health, s.Conditions = fleet.Degraded, []show.Condition{{Code: "members-held", Subject: "api", Text: "4 of 5\nare gone"}}
		}), 1, "ZKAGENT WARNING - members-held api: 4 of 5 are gone\n"},
		"failed": {healthy(func(s *show.Status) {
			s.Templates = []show.TemplateStatus{{Name: "web", State: "failed", Error: "no"}, {Name: "b", State: "ok"}}
			s.Health = fleet.Failing
			s.Conditions = []show.Condition{{Code: "template-failed", Subject: "web", Text: "no"}, {Code: "drift", Subject: "f", Text: "x"}}
		}), 2, "ZKAGENT CRITICAL - template-failed web: no; drift f: x\n"},
		"former version": {healthy(func(s *show.Status) { s.Health = "" }), 3, "ZKAGENT UNKNOWN - unknown health \"\""},
		"maintenance":    {healthy(func(s *show.Status) { s.Health = fleet.Maintenance }), 0, "ZKAGENT MAINTENANCE - 2 templates ok\n"},
		"refused":        {http.NotFoundHandler(), 3, "ZKAGENT UNKNOWN - no answer: agent answered 404 Not Found: 404 page not found\n"},
		"garbage":        {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{]")) }), 3, "ZKAGENT UNKNOWN - no answer: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			g := newGlobals(strings.NewReader(""), &out, t.Output())
			g.addr = socketPath(t)
			fakeAgent(t, g.addr, x.serve)
			err := checkStatus(t.Context(), g)
			code := 0
			if e, ok := errors.AsType[codeError](err); ok {
				code = int(e)
			} else if err != nil {
				t.Fatal(err)
			}
			if code != x.code || !strings.HasPrefix(out.String(), x.want) || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("got %d %q, want %d %q", code, out.String(), x.code, x.want)
			}
			g.Format = "json"
			out.Reset()
			_ = checkStatus(t.Context(), g)
			var o struct{ APIVersion, State, Text string }
			if err := json.Unmarshal(out.Bytes(), &o); err != nil || !strings.EqualFold(o.State, strings.Fields(x.want)[1]) {
				t.Errorf("got %s, %v", out.String(), err)
			}
		})
	}
}

// heard is what a command that goes on has printed so far.
type heard struct {
	mu   sync.Mutex // mu guards text.
	text bytes.Buffer
}

func (w *heard) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// until waits until the text holds something.
func (w *heard) until(t *testing.T, want string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		text := w.text.String()
		w.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %q in:\n%s", want, text)
		}
		<-tick.C
	}
}

// follow runs a command that goes on until the test ends.
func follow(t *testing.T, path string, run func(context.Context, *globals) error) (out, talk *heard) {
	t.Helper()
	out, talk = &heard{}, &heard{}
	g := newGlobals(strings.NewReader(""), out, talk)
	g.addr, g.Color = path, "never"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, g) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the context", err)
		}
	})
	return out, talk
}

// TestStatus_WatchOverARestart keeps on showing the status when the agent goes
// and comes again.
func TestStatus_WatchOverARestart(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	stop := fakeAgent(t, path, statusHandler(&show.Status{Summary: "the first"}))
	out, talk := follow(t, path, watchStatus)
	out.until(t, "the first")
	stop()
	talk.until(t, "no agent is running")
	fakeAgent(t, path, statusHandler(&show.Status{Summary: "the second"}))
	out.until(t, "the second")

	g := newGlobals(strings.NewReader(""), t.Output(), t.Output())
	g.addr = path + "-none"
	if err := watchStatus(t.Context(), g); !errors.Is(err, web.ErrNoAgent) {
		t.Errorf("without an agent from the beginning: got %v", err)
	}
}

// TestEvents_FollowOverARestart follows one agent and the next one: nothing is
// lost, and nothing shown twice.
func TestEvents_FollowOverARestart(t *testing.T) {
	path := socketPath(t)
	serve := func(list ...event.Event) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, e := range list {
				data, _ := json.Marshal(e)
				if r.FormValue("since") < strconv.FormatInt(e.Seq, 10) {
					_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.Seq, data)
				}
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}
	one, two, three := event.Event{Seq: 1001, Kind: "one"}, event.Event{Seq: 1002, Kind: "two", Subject: "web"}, event.Event{Seq: 2001, Kind: "three"}
	stop := fakeAgent(t, path, serve(one, two))
	out, talk := follow(t, path, func(ctx context.Context, g *globals) error {
		return g.withAgent(ctx, func(ctx context.Context, c *web.Client) error {
			return readEvents(ctx, &g.Console, c, true, func(e event.Event) bool { return e.Subject == "" })
		})
	})
	out.until(t, "one")
	stop()
	talk.until(t, "waiting for it")
	fakeAgent(t, path, serve(one, two, three))
	out.until(t, "three")
	out.mu.Lock()
	defer out.mu.Unlock()
	if text := out.text.String(); strings.Count(text, "one") != 1 || strings.Contains(text, "two") {
		t.Errorf("got\n%s", text)
	}
}
