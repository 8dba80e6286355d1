package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockShared opens the file and takes a shared lock on it. The lock belongs to
// the open file, which a guard inherits: it lasts as long as the guard.
func lockShared(path string) (*os.File, error) { return lock(path, unix.LOCK_SH) }

// Lock waits until nobody else has a lock on the file, and takes it. It ends with the file,
// or the process. So a caller waits for all guards that were started with this file, by
// this process or a previous one. waiting, unless nil, is called once when somebody has it.
func Lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		f, err := lock(path, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// lock opens and locks a file, again after a signal.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600) //nolint:gosec // the path is the agent's own.
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}
