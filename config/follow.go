package config

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Sessions hands out the session to work in. A [session.Manager] is one, and
// [In] makes one of a single session.
type Sessions interface {
	// Session waits for a session that has connected and has not ended.
	Session(ctx context.Context) (*session.Session, error)
}

// In is a [Sessions] of one session. When that has ended, there is no other.
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

// Follow calls use with the tree of a config: first with the one in use, then
// after every completed change, over as many sessions as it takes. Calls come
// one after another; a slow one delays the next, which then has the newest tree.
// A tree that equals the last one is not passed on, in a new session neither, and
// what is passed on is never changed afterwards.
//
// Follow returns nil when ctx ends, and an error when there will be no further
// session, or when cfg is wrong. What a person can put right, such as an ACL, it
// logs, and goes on; a program that wants to show it runs a [Watcher].
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
