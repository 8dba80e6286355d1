package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// patience bounds every wait for something that must come.
const patience = 2 * time.Minute

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

// still is an agent of which nothing changes.
type still struct {
	status  show.Status
	http    *HTTPConfig
	preview func(name string) ([]FileDiff, error)
	group   func(name string) (*view.Group, bool)
	next    func() <-chan struct{}
	blamed  []*blame.File
}

func (s *still) Status() show.Status               { return s.status }
func (s *still) Members() map[string][]view.Member { return nil }
func (s *still) GroupSet(name string) bool         { return name == "all" }
func (s *still) GroupNames() []string              { return []string{"web", "all/a", "all/b"} }
func (s *still) Ping(context.Context) error        { return nil }
func (s *still) Ready() <-chan struct{}            { return closed }
func (s *still) Ended() <-chan struct{}            { return nil }
func (s *still) HTTP() *HTTPConfig                 { return s.http }

func (s *still) State() (string, <-chan struct{}) {
	if s.next == nil {
		return "0", nil
	}
	return "0", s.next()
}

func (s *still) Group(name string) (*view.Group, bool) { return s.group(name) }

func (s *still) Session(context.Context) (*session.Session, error) {
	return nil, errors.New("ZooKeeper is suspended")
}

func (s *still) Blame(context.Context, blame.Query) ([]*blame.File, error) {
	if s.blamed == nil {
		return nil, blame.ErrNoFile
	}
	return s.blamed, nil
}

func (s *still) Preview(_ context.Context, name string) ([]FileDiff, error) { return s.preview(name) }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// newServer is a server of a still agent.
func newServer(src *still) *Server { return serverOf(src) }

func serverOf(src Source) *Server {
	return New(Config{
		Source: src, ID: "a1", Events: event.NewRing(), Conditions: &condition.Set{},
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	})
}

// listening listens until the test ends and returns the address.
func listening(t *testing.T, s *Server) string {
	t.Helper()
	run, stop, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait(); stop() })
	return s.Addr()
}

// TestLive_ManyClients opens ten thousand streams at once.
func TestLive_ManyClients(t *testing.T) {
	s := newServer(&still{})
	mux := s.Handler()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	codes := make(chan int, 10000)
	var wg sync.WaitGroup
	for i := range cap(codes) {
		path := "/live"
		if i%2 == 0 {
			path = "/events?follow=1"
		}
		wg.Go(func() {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
			codes <- w.Code
		})
	}
	for range cap(codes) - DefaultMaxConnections*3/4 {
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Fatalf("got %d, want %d", code, http.StatusServiceUnavailable)
		}
	}
	cancel()
	wg.Wait()
	for range DefaultMaxConnections * 3 / 4 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("got %d, want 200", code)
		}
	}
	if n := s.followers.Load(); n != 0 {
		t.Errorf("%d streams are still counted", n)
	}
}

// TestEvents_ClientThatDoesNotRead: a client that asks for the stream and reads
// nothing delays no other client.
func TestEvents_ClientThatDoesNotRead(t *testing.T) {
	s := newServer(&still{http: &HTTPConfig{Listen: "127.0.0.1:0"}})
	addr := listening(t, s)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream", func() bool { return s.followers.Load() == 1 })
	for range 400 { // far more than the buffers of a connection hold
		s.Events.Add(event.Event{Kind: "flood", Text: strings.Repeat("x", 100<<10)})
	}
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("got %v, %v", resp, err)
	}
	resp.Body.Close()
	conn.Close()
	eventually(t, "the end of the stream", func() bool { return s.followers.Load() == 0 })
}

// BenchmarkPage_Fleet500 renders the fleet page of 500 hosts.
func BenchmarkPage_Fleet500(b *testing.B) {
	hosts := make([]fleet.HostStatus, 500)
	for i := range hosts {
		hosts[i] = fleet.HostStatus{ID: fmt.Sprintf("host-%03d", i), Record: fleet.Record{
			Version: "1.2.3", Since: time.Now(), Health: fleet.OK, Files: map[string]string{"nginx": "ok@118", "haproxy": "ok@118"},
		}}
	}
	t, err := pageTemplates()
	if err != nil {
		b.Fatal(err)
	}
	data := pageData{Title: "Fleet", Path: "/", Sections: sections, Body: newServer(&still{}).viewFleet(Fleet{Hosts: hosts}, time.Now())}
	var out bytes.Buffer
	for b.Loop() {
		out.Reset()
		if err := t.ExecuteTemplate(&out, "fleet.html", data); err != nil {
			b.Fatal(err)
		}
	}
}

// The sender of an order that ends the agent has an answer, however slow the disk is
// that keeps the note of it.
func TestListen_AnswersTheLastOrder(t *testing.T) {
	t.Parallel()
	s := newServer(&still{})
	s.Socket = filepath.Join(t.TempDir(), "s")
	given := make(chan struct{})
	s.Orders = map[string]Order{"/leave": func(context.Context, Args) error {
		close(given)
		<-time.NewTimer(2 * lastPages).C
		return nil
	}}
	_, stop, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- NewClient(s.Socket).Post(t.Context(), "/leave", nil) }()
	<-given
	stop()
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestListen_Refused(t *testing.T) {
	for _, addr := range []string{":8558", "0.0.0.0:8558", "[::]:8558", "*:8558"} {
		ln, err := httpListener(t.Context(), addr)
		if err == nil || !strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s: got %v, %v", addr, ln, err)
		}
	}
	if _, err := adminSocket(t.Context(), "/tmp/"+strings.Repeat("x", 120)); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("long path: got %v", err)
	}
	file := filepath.Join(testhelp.ShortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := adminSocket(t.Context(), file); err == nil {
		t.Error("a file was replaced by a socket")
	}
}

func TestAdminSocket_LeftOverAndTaken(t *testing.T) {
	path := filepath.Join(testhelp.ShortDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	ln, err := adminSocket(t.Context(), path)
	if err != nil {
		t.Fatalf("left over: %v", err)
	}
	defer ln.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	if _, err := adminSocket(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("taken: got %v", err)
	}
}

// TestShown: of a long list of hosts, those that need a look stand above the fold.
func TestShown(t *testing.T) {
	for _, c := range [][3]int{{3, 0, 3}, {50, 50, 50}, {51, 0, 0}, {300, 2, 2}, {300, 300, 50}} {
		if got := shown(c[0], c[1]); got != c[2] {
			t.Errorf("of %d, %d of them bad: %d", c[0], c[1], got)
		}
	}
	var hosts []fleet.HostStatus
	for i := range 60 {
		hosts = append(hosts, fleet.HostStatus{ID: fmt.Sprintf("h%02d", i), Record: fleet.Record{Health: fleet.OK}})
	}
	hosts[0].Health = fleet.Failing
	v := serverOf(newChanging()).viewFleet(Fleet{Hosts: hosts}, time.Now())
	if v.Bad() != 1 {
		t.Errorf("%d bad hosts", v.Bad())
	}
}

// While ZooKeeper does not answer, each page that has data of its says so, and since when.
// An empty list is unknown then.
func TestPages_Outage(t *testing.T) {
	for _, state := range []string{"connected", "suspended", "expired", "read-only"} {
		src := &still{}
		src.status.ZooKeeper = show.ZooKeeperStatus{State: state, LastAnswer: time.Now().Add(-time.Hour)}
		h := serverOf(src).Handler()
		for _, p := range sections {
			_, text := asked(h, p.Path)
			want := state != "connected" && !slices.Contains(localPages, p.name)
			if strings.Contains(text, "Not up to date: ZooKeeper is "+state+". What is grey is as of") != want {
				t.Errorf("%s, %s: want the outage %t, got %s", p.name, state, want, text)
			}
			if strings.Contains(text, "takes part in no election") || strings.Contains(text, "follows no config with versions") || strings.Contains(text, "No rollouts of") {
				t.Errorf("%s, %s: it says what it does not know: %s", p.name, state, text)
			}
		}
	}
}
