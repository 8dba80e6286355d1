package config

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Sessions provides the session to work in. A [session.Manager] implements it. [In]
// wraps a single session.
type Sessions interface {
	// Session waits for a session that has connected and has not ended.
	Session(ctx context.Context) (*session.Session, error)
}

// In returns a [Sessions] with a single session. After that session ends, Session
// returns an error.
func In(s *session.Session) Sessions { return oneSession{s} }

type oneSession struct{ s *session.Session }

// Session implements [Sessions].
func (o oneSession) Session(ctx context.Context) (*session.Session, error) {
	if err := o.s.Context().Err(); err != nil {
		return nil, context.Cause(o.s.Context())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return o.s, nil
}

// Follow calls use with the current tree of a config and then after every completed
// change. It continues across sessions. Calls do not overlap: a slow call delays
// the next one, which then gets the latest tree. Follow skips a tree that equals
// the last one, even in a new session. It never changes a tree that it has passed
// on.
//
// Follow returns nil when ctx ends, and an error when cfg is invalid or no further
// session will come. It logs problems that a person can fix, such as an ACL, and
// continues. A program that wants to show such problems uses a [Watcher].
func Follow(ctx context.Context, sessions Sessions, cfg Config, use func(*view.Tree)) error {
	w := NewWatcher(cfg)
	for {
		s, err := sessions.Session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller has ended it
		}
		if err != nil {
			return err
		}
		err = w.Run(ctx, s, func(u view.Update) {
			if tree, ok := u.(*view.Tree); ok {
				use(tree)
			}
		})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller has ended it
		case err != nil && !errors.Is(err, session.ErrExpired) && !errors.Is(err, session.ErrClosed):
			return err
		}
	}
}
