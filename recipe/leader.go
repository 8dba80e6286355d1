package recipe

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
)

// Leader is who stands first among the participants, as read at one moment.
type Leader struct {
	Path string       // of its znode; empty when there is nobody
	Data []byte       // what it says of itself: by custom its id
	Stat session.Stat // of its znode; the Czxid is the term
}

// Follow calls up with the leader, at once and whenever another
// participant has become it, until ctx or the session ends, and returns
// the cause. It watches the leader's znode alone, or the path while there
// is nobody. Whoever follows is woken by each change of the leader.
func (ps *Participants) Follow(ctx context.Context, s *session.Session, up func(Leader)) error {
	last := Leader{Path: "unknown"}
	for {
		leader, watch, err := ps.leader(ctx, s)
		if err != nil {
			return err
		}
		if leader.Path != last.Path || leader.Stat.Czxid != last.Stat.Czxid || leader.Stat.Mzxid != last.Stat.Mzxid {
			last = leader
			up(leader)
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}

// leader reads the leader with a watch that tells when to read again.
func (ps *Participants) leader(ctx context.Context, s *session.Session) (Leader, *session.Watch, error) {
	for {
		names, _, err := s.Children(ctx, ps.Path)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return Leader{}, nil, err
		}
		c, ok := first(names)
		if !ok {
			list, watch, err := s.ListW(ctx, ps.Path)
			if err != nil {
				return Leader{}, nil, err
			}
			if _, ok := first(list.Names); !ok {
				return Leader{}, watch, nil
			}
			watch.Stop()
			continue
		}
		path := child(ps.Path, c.name)
		data, stat, watch, err := s.GetW(ctx, path)
		if !errors.Is(err, session.ErrNoNode) {
			return Leader{path, data, stat}, watch, err
		}
	}
}
