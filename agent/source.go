package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
)

// shown is the agent as its page sees it.
type shown struct{ *Agent }

// State implements web.Source.
func (a shown) State() (string, <-chan struct{}) {
	s := a.loop.snapshot.Load()
	return fmt.Sprintf("%x", s.at.UnixNano()), s.next
}

// Ping implements web.Source.
func (a shown) Ping(ctx context.Context) error {
	select {
	case a.loop.pings <- struct{}{}:
		return nil
	case <-a.loop.done:
		return errors.New("the loop has ended")
	case <-ctx.Done():
		return errors.New("the loop does not turn")
	}
}

// Ended implements web.Source.
func (a shown) Ended() <-chan struct{} { return a.loop.done }

// HTTP implements web.Source.
func (a shown) HTTP() *web.HTTPConfig { return a.cfg.Load().HTTP }

// Session implements web.Source: without a connection it returns an error at
// once, so that a reader does not wait during an outage.
func (a shown) Session(ctx context.Context) (*session.Session, error) {
	if st := a.sessions.State(); st != session.Connected && st != session.ReadOnly {
		return nil, fmt.Errorf("ZooKeeper is %s", st)
	}
	return a.sessions.Session(ctx)
}
