package session

import (
	"context"
	"time"
)

// Pauses of Each between two tries in one session.
const (
	eachFirst = 100 * time.Millisecond
	eachLast  = 30 * time.Second
	eachCalm  = time.Minute // the pauses start over after a try that lasted so long
)

// eachTries has the policy of the context, or these pauses.
func eachTries(ctx context.Context) tries {
	policy := retryOf(ctx)
	if policy == nil {
		policy = Backoff{First: eachFirst, Last: eachLast}
	}
	return tries{policy: policy, began: time.Now()}
}

// Each calls fn in each session, one session after another. The Run(ctx, s) of
// registrars, groups, candidates, nodes and followers fits.
//
// The result of fn decides the next step:
//
//   - nil: Each returns nil.
//   - An error, and ctx has ended: Each returns it.
//   - An error, and the session has ended: fn is called in the next session.
//   - A temporary error (ErrUnknown, ErrNoServer, ErrThrottled, ErrSuspended): fn is
//     called again in the same session, after a pause that grows from 100 ms to 30 s.
//     The pauses start over after a try that lasted a minute. A policy of the context
//     ([WithRetry]) replaces them; when it gives up, Each returns the error.
//   - Any other error: Each returns it.
//
// The Manager's Run must be running. Each also returns when that has ended.
func (m *Manager) Each(ctx context.Context, fn func(ctx context.Context, s *Session) error) error {
	again := eachTries(ctx)
	for {
		s, err := m.Session(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		err = fn(ctx, s)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case s.Context().Err() != nil:
			continue
		case ActionFor(err) != Retry:
			return err
		}
		if time.Since(began) >= eachCalm {
			again.n, again.began = 0, began
		}
		pause, over := again.next()
		if over != nil {
			return err
		}
		if err := s.Sleep(ctx, pause); err != nil && ctx.Err() != nil {
			return err
		}
	}
}

// Each opens a session, calls fn in it and in the following ones, like
// [Manager.Each], and closes the last one.
func Each(ctx context.Context, cfg Config, fn func(ctx context.Context, s *Session) error) error {
	m, err := New(cfg)
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- m.Run(run) }()
	err = m.Each(ctx, fn)
	stop()
	if end := <-done; err == nil {
		err = end
	}
	return err
}
