package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// followOffers brings each offered tree into use, when and as its rollout
// permits. A newer offer ends the wait for an older one.
func (p *Participant) followOffers(ctx context.Context, s *session.Session) error {
	var inUse bool // something of this tree is in use in this process
	next, ok := p.next(ctx, s)
	for ok {
		offer := next
		run, cancel := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() { result <- p.bring(run, s, offer, &inUse) }()
		next, ok = p.nextOr(ctx, s, result)
		cancel()
		// bring does not stop in the middle of an activation: a host is
		// either done or failed before it looks at another version.
		if err := drain(result); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (p *Participant) next(ctx context.Context, s *session.Session) (*view.Tree, bool) {
	select {
	case tree := <-p.offers:
		return tree, true
	case <-ctx.Done():
	case <-s.Done():
	}
	return nil, false
}

// nextOr waits for the next offer and passes the result of the present one
// back into its channel when that comes first.
func (p *Participant) nextOr(ctx context.Context, s *session.Session, result chan error) (*view.Tree, bool) {
	select {
	case err := <-result:
		result <- err
		if err != nil {
			return nil, false
		}
		return p.next(ctx, s)
	case tree := <-p.offers:
		return tree, true
	case <-ctx.Done():
	case <-s.Done():
	}
	return nil, false
}

func drain(result chan error) error {
	err := <-result
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// bring shows the tree at once when it needs no permit, else takes its turn.
func (p *Participant) bring(ctx context.Context, s *session.Session, tree *view.Tree, inUse *bool) error {
	if tree.Rollout == "" {
		p.cfg.Host.Show(tree)
		*inUse = true
		return nil
	}
	const first, most = 200 * time.Millisecond, 5 * time.Second
	for wait := first; ctx.Err() == nil; wait = min(2*wait, most) {
		finished, err := p.turn(ctx, s, tree, inUse)
		if finished {
			return nil
		}
		if s.Context().Err() != nil {
			return context.Cause(s.Context())
		}
		if err != nil && ctx.Err() == nil {
			p.log.Warn("rollout turn failed", "rollout", tree.Rollout, "version", tree.Generation, "err", err)
			if !pause(ctx, wait) {
				break
			}
		}
	}
	return context.Cause(ctx)
}
