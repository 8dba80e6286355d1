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

func retryOf(ctx context.Context) RetryPolicy {
	p, _ := ctx.Value(retryKey{}).(RetryPolicy)
	return p
}

// tries counts the failed tries of a request.
type tries struct {
	policy RetryPolicy // nil: forever
	began  time.Time
	n      int
}

func newTries(ctx context.Context) tries { return tries{policy: retryOf(ctx), began: time.Now()} }

// next returns the pause before the next try.
func (t *tries) next() (time.Duration, error) {
	t.n++
	pause, again := t.policy.Next(t.n, time.Since(t.began))
	if !again {
		return 0, fmt.Errorf("%w: gave up after %d tries in %s", ErrNoServer, t.n, time.Since(t.began).Round(time.Millisecond))
	}
	return pause, nil
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

// again waits before a request whose connection was lost is sent again.
func (t *tries) again(ctx context.Context, s *Session) error {
	if t.policy == nil {
		return nil
	}
	pause, err := t.next()
	if err == nil {
		_ = s.Sleep(ctx, pause) // the next call of connection returns the error
	}
	return err
}
