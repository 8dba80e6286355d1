package session

import (
	"context"
	"fmt"
	"sync"
)

// Dial connects to an ensemble with a single session and no state, for commands and
// tests. It starts no other session after the end of this one. It returns when the
// session is connected or ctx ends. The session does not end with ctx: call Close.
func Dial(ctx context.Context, cfg Config) (*Session, error) {
	m, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := newSession(ctx, m.cfg)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ended, runner sync.WaitGroup
	runner.Go(func() {
		if failed := m.one(run, s, &ended); failed != nil {
			s.end(Closed, fmt.Errorf("%w: %w", ErrClosed, failed))
		}
		ended.Wait()
	})
	s.close = sync.OnceValue(func() error {
		stop()
		runner.Wait()
		return nil
	})
	select {
	case <-s.up:
		return s, nil
	case <-s.Done():
		err = s.cause()
	case <-ctx.Done():
		err = m.waitError(ctx, s)
	}
	_ = s.Close()
	return nil, fmt.Errorf("dial zookeeper: %w", err)
}
