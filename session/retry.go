package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// RetryPolicy limits how often, and for how long, to try a request. Without a policy the
// session tries a request until its context ends, while it cannot have been applied. A
// policy belongs to calls, not to the session, so it does not end the clean-up of a
// recipe after its caller has returned. See WithRetry.
type RetryPolicy interface {
	// Next is called after each failed try, with the number of tries so far and the
	// time since the first try began. It returns the pause before the next try, or
	// false to give up.
	Next(tries int, elapsed time.Duration) (time.Duration, bool)
}

// Backoff is a RetryPolicy whose pauses double. If Last equals First, the pauses stay the
// same. If Tries is 1, there is only one try.
type Backoff struct {
	First time.Duration // pause after the first try
	Last  time.Duration // longest pause; 0: First
	Tries int           // give up after so many tries; 0: never
	For   time.Duration // give up so long after the first try began; 0: never
	// Jitter makes each pause a random one between half of it and all of it.
	Jitter bool
}

// Next implements RetryPolicy.
func (b Backoff) Next(tries int, elapsed time.Duration) (time.Duration, bool) {
	if b.Tries > 0 && tries >= b.Tries || b.For > 0 && elapsed >= b.For {
		return 0, false
	}
	pause, last := b.First, max(b.Last, b.First)
	for n := 1; n < tries && pause < last; n++ {
		pause = min(2*pause, last)
	}
	if b.For > 0 {
		pause = min(pause, b.For-elapsed)
	}
	if b.Jitter {
		pause = pause/2 + rand.N(pause/2+1) // #nosec G404 -- spreads retries
	}
	return pause, true
}

type retryKey struct{}

// WithRetry returns a context that makes requests, and Each, follow the policy. When the
// policy gives up a request, its error matches ErrNoServer, and the request was not
// applied. A write whose reply was lost is never tried again: it returns ErrUnknown. While
// there is no connection, each pause counts as one failed try.
func WithRetry(ctx context.Context, p RetryPolicy) context.Context {
	return context.WithValue(ctx, retryKey{}, p)
}

// tries counts the failed tries of a request.
type tries struct {
	policy RetryPolicy // nil: forever
	began  time.Time
	n      int
}

// newTries has the policy of the context, or another one if that has none.
func newTries(ctx context.Context, another RetryPolicy) tries {
	if p, ok := ctx.Value(retryKey{}).(RetryPolicy); ok {
		another = p
	}
	return tries{policy: another, began: time.Now()}
}

// next returns the pause before the next try.
func (t *tries) next() (time.Duration, error) {
	t.n++
	pause, again := t.policy.Next(t.n, time.Since(t.began))
	if !again {
		return 0, fmt.Errorf("%w: gave up after %d tries in %s", ErrNoServer, t.n, time.Since(t.began).Round(time.Millisecond))
	}
	return pause, nil
}

// wait pauses before the next try. It returns why there is none.
func (t *tries) wait(ctx context.Context, s *Session) error {
	pause, err := t.next()
	if err == nil {
		err = s.Sleep(ctx, pause)
	}
	return err
}

// connection waits for an open connection, for as long as the policy allows.
func (t *tries) connection(ctx context.Context, s *Session, write bool) (*wire, error) {
	if t.policy == nil {
		return s.connection(ctx, write)
	}
	for {
		w, _, err := s.connectionNow(ctx, write)
		if w != nil || err != nil {
			return w, err
		}
		pause, err := t.next()
		if err != nil {
			return nil, err
		}
		bounded, cancel := context.WithTimeout(ctx, pause)
		w, err = s.connection(bounded, write)
		cancel()
		if err == nil {
			return w, nil
		}
	}
}

// eachBackoff has the pauses of Each between two tries in one session. They start over
// after a try that lasted for eachCalm.
var eachBackoff = Backoff{First: 100 * time.Millisecond, Last: 30 * time.Second}

const eachCalm = time.Minute

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
	if fn == nil {
		return ErrNoCallback
	}
	again := newTries(ctx, eachBackoff)
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
