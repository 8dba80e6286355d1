// Package systemd reports our state to the service manager, and asks it whether a
// stop is the first half of a restart.
//
// Guarantees: without a service manager everything here does nothing and
// returns no error; nothing here blocks for longer than its context allows.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"
)

// Notifier sends states to the service manager. The nil Notifier does nothing.
type Notifier struct {
	addr *net.UnixAddr
}

// NewNotifier returns a Notifier for $NOTIFY_SOCKET, or nil without one.
func NewNotifier() *Notifier {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	return &Notifier{addr: &net.UnixAddr{Name: name, Net: "unixgram"}}
}

// Send sends the assignments, such as "READY=1", in one message.
func (n *Notifier) Send(state ...string) error {
	if n == nil || len(state) == 0 {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.addr)
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(strings.Join(state, "\n"))); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// Ready says that the service is up, or again after Reloading.
func (n *Notifier) Ready(status string) error { return n.Send("READY=1", statusLine(status)) }

// Status shows one line in the service manager's status.
func (n *Notifier) Status(status string) error { return n.Send(statusLine(status)) }

// Reloading says that a reload has begun; Ready ends it.
func (n *Notifier) Reloading() error {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return n.Send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(ts.Nano()/1000, 10))
}

// Stopping says that the service is going down and may take that long.
func (n *Notifier) Stopping(status string, extend time.Duration) error {
	s := []string{"STOPPING=1", statusLine(status)}
	if extend > 0 {
		s = append(s, "EXTEND_TIMEOUT_USEC="+strconv.FormatInt(extend.Microseconds(), 10))
	}
	return n.Send(s...)
}

// Watchdog says that we are making progress.
func (n *Notifier) Watchdog() error { return n.Send("WATCHDOG=1") }

func statusLine(s string) string {
	return "STATUS=" + strings.ReplaceAll(s, "\n", " ")
}

// WatchdogInterval is how often Watchdog must be called, half of what the
// service manager allows; 0 when it does not watch this process.
func WatchdogInterval() time.Duration {
	interval, _ := daemon.SdWatchdogEnabled(false) // What cannot be parsed asks for nothing.
	return interval / 2
}

// ErrUnknown says that the service manager does not know.
var ErrUnknown = errors.New("no service manager job to be found")

// Job returns the type of the job that is queued or running for the unit of
// this process: "restart", "stop", "reload", ...; ErrUnknown when there is
// none or it cannot be asked. A stop that is the first half of a restart is
// shown as "restart" (the job keeps its type while the unit stops).
func Job(ctx context.Context) (string, error) {
	if os.Getenv("INVOCATION_ID") == "" && os.Getenv("NOTIFY_SOCKET") == "" {
		return "", ErrUnknown
	}
	conn, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return "", fmt.Errorf("connect to the service manager: %w", err)
	}
	defer conn.Close()
	unit, err := conn.GetUnitNameByPID(ctx, uint32(os.Getpid())) //nolint:gosec // a process id fits.
	if err != nil {
		return "", fmt.Errorf("find our unit: %w", err)
	}
	jobs, err := conn.ListJobsContext(ctx)
	if err != nil {
		return "", fmt.Errorf("list jobs: %w", err)
	}
	for _, j := range jobs {
		if j.Unit == unit {
			return j.JobType, nil
		}
	}
	return "", ErrUnknown
}
