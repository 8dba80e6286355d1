package recipe

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
)

// Front is who stands first in a line, as read at one moment.
type Front struct {
	Path string // of its znode; empty when the line is empty
	Data []byte
	Stat session.Stat
}

// Follow calls up with the front of the line, at once and whenever another
// contender has come to stand there, until ctx or the session ends, and returns
// the cause. It watches the front's znode alone, or the line while it is
// empty. Whoever follows is woken by each change of the front.
func (l *Line) Follow(ctx context.Context, s *session.Session, up func(Front)) error {
	last := Front{Path: "unknown"}
	for {
		front, watch, err := l.front(ctx, s)
		if err != nil {
			return err
		}
		if front.Path != last.Path || front.Stat.Czxid != last.Stat.Czxid || front.Stat.Mzxid != last.Stat.Mzxid {
			last = front
			up(front)
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}

// front reads the front with a watch that tells when to read again.
func (l *Line) front(ctx context.Context, s *session.Session) (Front, *session.Watch, error) {
	for {
		names, _, err := s.Children(ctx, l.Path)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return Front{}, nil, err
		}
		c, ok := first(names)
		if !ok {
			list, watch, err := s.ListW(ctx, l.Path)
			if err != nil {
				return Front{}, nil, err
			}
			if _, ok := first(list.Names); !ok {
				return Front{}, watch, nil
			}
			watch.Stop()
			continue
		}
		path := child(l.Path, c.name)
		data, stat, watch, err := s.GetW(ctx, path)
		if !errors.Is(err, session.ErrNoNode) {
			return Front{path, data, stat}, watch, err
		}
	}
}
