package apply

import (
	"context"
	"sync"
)

// swapLock keeps swap-and-check and reload apart: while files are in place
// that are not yet checked, no apply may make a program read them. It is
// taken per reload command. The zero value is ready.
type swapLock struct {
	mu    sync.Mutex // mu guards slots.
	slots map[string]chan struct{}
}

// slot is the lock of one reload command: a channel that holds one token.
func (l *swapLock) slot(key string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[key]
	if s == nil {
		s = make(chan struct{}, 1) // one token: the sender holds the lock.
		if l.slots == nil {
			l.slots = map[string]chan struct{}{}
		}
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
// other such swap.
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
	return func() { swap(); own() }, nil
}
