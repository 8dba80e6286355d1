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
func lockShared(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the path is the agent's own.
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// WaitGuards waits until no guard runs that was started with this lock file,
// by this process or a former one. waiting is called once when there is one.
func WaitGuards(ctx context.Context, path string, waiting func()) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the path is the agent's own.
	if err != nil {
		return err
	}
	defer f.Close()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for reported := false; ; reported = true {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", path, err)
		}
		if !reported && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// flock locks the open file, again after a signal.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
