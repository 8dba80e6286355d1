package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/coreos/go-systemd/v22/dbus"
)

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
