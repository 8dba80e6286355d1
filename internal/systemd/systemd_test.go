package systemd

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNotifier_Messages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	n := NewNotifier()
	next := func() string {
		buf := make([]byte, 4096)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		c, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:c])
	}
	for _, c := range []struct {
		send func() error
		want string
	}{
		{func() error { return n.Ready("3 templates\nok") }, "READY=1\nSTATUS=3 templates ok"},
		{func() error { return n.Stopping("bye", 2*time.Second) }, "STOPPING=1\nSTATUS=bye\nEXTEND_TIMEOUT_USEC=2000000"},
		{n.Watchdog, "WATCHDOG=1"},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		if got := next(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if err := n.Reloading(); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("got %q", got)
	}
}

func TestWithoutServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("INVOCATION_ID", "")
	if err := NewNotifier().Ready("up"); err != nil {
		t.Error(err)
	}
	if _, err := Job(t.Context()); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want %v", err, ErrUnknown)
	}
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", "1")
	if got := WatchdogInterval(); got != 0 {
		t.Errorf("got %v for another process", got)
	}
	t.Setenv("WATCHDOG_PID", "")
	if got, want := WatchdogInterval(), 15*time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
