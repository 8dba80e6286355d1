package haproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

// startHAProxy starts a HAProxy with empty slots and returns its backend and
// the address of its frontend.
func startHAProxy(t *testing.T, slots int) (*Backend, string) {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		if program = "/usr/sbin/haproxy"; !exists(program) {
			t.Fatal("haproxy is missing: run scripts/setup-tests")
		}
	}
	// The frontend's socket is handed over, so that no port is taken twice.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	socket, cfg := filepath.Join(dir, "s"), filepath.Join(dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
  stats socket %s mode 600 level admin
defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  option redispatch
frontend in
  bind fd@3
  default_backend web
backend web
  server-template slot %d 127.0.0.1:1 disabled
`, socket, slots)
	if err := os.WriteFile(cfg, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-db", "-f", cfg)
	cmd.ExtraFiles = []*os.File{file}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	b := &Backend{Socket: socket, Name: "web"}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err = b.Slots(t.Context()); err == nil {
			return b, "http://" + ln.Addr().String()
		}
		if time.Now().After(deadline) {
			t.Fatalf("HAProxy does not answer: %v\n%s", err, out.String())
		}
		time.Sleep(10 * time.Millisecond) // between two looks at a program that has no event
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func memberOf(t *testing.T, id string, srv *httptest.Server) view.Member {
	t.Helper()
	addr := netip.MustParseAddrPort(srv.Listener.Addr().String())
	return view.Member{ID: id, Host: addr.Addr().String(), Port: int(addr.Port()), Weight: 1, Status: view.StatusUp}
}

// Members come, drain and go in a real HAProxy while requests run: each is
// answered, by a member that may get it.
func TestBackend_HAProxy(t *testing.T) {
	t.Parallel()
	b, url := startHAProxy(t, 4)
	var members []view.Member
	for i := range 4 {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strconv.Itoa(i)) }))
		t.Cleanup(srv.Close)
		members = append(members, memberOf(t, fmt.Sprint("m", i), srv))
	}
	apply := func(list ...view.Member) Result {
		t.Helper()
		r, err := b.Apply(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.Apply(t.Context(), list)
		if err != nil || again.Commands != 0 {
			t.Fatalf("applied again: %+v, %v", again, err)
		}
		return r
	}
	apply(members[0])
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	count := 0
	go func() {
		defer close(failed)
		for ctx.Err() == nil {
			count++
			if _, err := get(url); err != nil {
				failed <- err
				return
			}
		}
	}()
	for range 10 {
		apply(members[0], members[1], members[2])
		draining := members[1]
		draining.Status = view.StatusDraining
		apply(members[0], draining, members[2])
		if got := slotOf(t, b, draining); got.State != Drain {
			t.Fatalf("draining: %+v", got)
		}
		stays := slotOf(t, b, members[2])
		apply(members[0], members[2])
		apply(members[2], members[3])
		if got := slotOf(t, b, members[2]); got != stays {
			t.Fatalf("the member that stayed is in %+v, was in %+v", got, stays)
		}
	}
	cancel()
	if err := <-failed; err != nil {
		t.Errorf("after %d requests: %v", count, err)
	}
	got, err := get(url)
	if err != nil || got != "2" && got != "3" {
		t.Errorf("got %q, %v", got, err)
	}
	named := members[0]
	named.Host = "nosuch.invalid"
	five := append([]view.Member{named}, members...)
	extra := members[0]
	extra.ID, extra.Port = "extra", 9
	r, err := b.Apply(t.Context(), append(five, extra))
	if err != nil || len(r.Left) != 2 || r.Ready != 4 {
		t.Errorf("more than fit: %+v, %v", r, err)
	}
	if _, err := (&Backend{Socket: b.Socket, Name: "nosuch"}).Apply(t.Context(), members); err == nil || !strings.Contains(err.Error(), "backend") {
		t.Errorf("an unknown backend: %v", err)
	}
}

// slotOf finds the slot of a member.
func slotOf(t *testing.T, b *Backend, m view.Member) Slot {
	t.Helper()
	slots, err := b.Slots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(slots, func(s Slot) bool { return int(s.Addr.Port()) == m.Port })
	if i < 0 {
		t.Fatalf("%s has no slot: %+v", m.ID, slots)
	}
	return slots[i]
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return string(body), err
}
