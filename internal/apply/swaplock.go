package apply

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/proc"
)

// swapLock keeps swap-and-check and reload apart: while files are in place
// that are not yet checked, no apply may make a program read them. It is
// taken per reload command within this process, and once on the host among
// agents that share a directory for it.
type swapLock struct {
	path string // of the lock file; empty: this process only

	mu    sync.Mutex // mu guards slots.
	slots map[string]chan struct{}
}

func newSwapLock(stateDir string) *swapLock {
	l := &swapLock{slots: map[string]chan struct{}{}}
	for _, dir := range []string{"/run/lock", stateDir} {
		if dir != "" && unix.Access(dir, unix.W_OK) == nil {
			l.path = filepath.Join(dir, "zkagent-swap.lock")
			break
		}
	}
	return l
}

// slot is the lock of one reload command: a channel that holds one token.
func (l *swapLock) slot(key string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[key]
	if s == nil {
		s = make(chan struct{}, 1) // one token: the sender holds the lock.
		l.slots[key] = s
	}
	return s
}

// command takes the lock for a reload command.
func (l *swapLock) command(ctx context.Context, key string) (func(), error) {
	s := l.slot(key)
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// acquire takes the lock for a swap: against the reload command of the bundle
// and, when a check is to run while the files are in place, against every
// other such swap on the host.
func (l *swapLock) acquire(ctx context.Context, key string, window bool) (func(), error) {
	own, err := l.command(ctx, "key\x00"+key)
	if err != nil || !window {
		return own, err
	}
	swap, err := l.command(ctx, "swap")
	if err != nil {
		own()
		return nil, err
	}
	host := l.host(ctx)
	return func() { host(); swap(); own() }, nil
}

// hostPatience bounds the wait for other agents of this host: one that is
// stopped must not hold up this one forever. The lock narrows a window, it
// does not make swaps safe by itself.
const hostPatience = 30 * time.Second

// host takes the lock file, waiting for other agents of this host.
func (l *swapLock) host(ctx context.Context) func() {
	if l.path == "" {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, hostPatience)
	defer cancel()
	lock, err := proc.Lock(ctx, l.path, nil)
	if err != nil {
		return func() {}
	}
	return func() { _ = lock.Close() }
}
