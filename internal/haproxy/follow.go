package haproxy

import (
	"context"
	"time"

	"github.com/zkagent/zkagent/view"
)

// How often HAProxy's state is compared without a change: a HAProxy that was
// restarted has empty slots. An error is tried again sooner.
const (
	compareEvery = 10 * time.Second
	retryAfter   = time.Second
)

// Follow applies each list of members that arrives, until ctx ends or lists is
// closed. Lists that arrive while HAProxy is asked are folded. done is called
// after each time that something was changed or went wrong.
func (b *Backend) Follow(ctx context.Context, lists <-chan []view.Member, done func(Result, error)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var members []view.Member
	known, left := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case list, ok := <-lists:
			if !ok {
				return
			}
			members, known = list, true
		case <-timer.C:
		}
		if !known {
			continue
		}
		r, err := b.Apply(ctx, members)
		if ctx.Err() != nil {
			return
		}
		if err != nil || r.Commands > 0 || len(r.Left) != left {
			done(r, err)
		}
		left = len(r.Left)
		if err != nil {
			timer.Reset(retryAfter)
		} else {
			timer.Reset(compareEvery)
		}
	}
}
