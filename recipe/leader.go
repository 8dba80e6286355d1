package recipe

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
)

// Leader is the first of the participants, as read at one moment.
type Leader struct {
	Path string       // of its znode; empty when there is no participant
	Data []byte       // what it says of itself: by custom its id
	Stat session.Stat // of its znode; the Czxid is the term
}

// Follow calls up with the leader, at once and each time another participant becomes
// the leader. It ends with ctx or the session, and returns the cause. It watches only
// the leader's znode, or the path while there is no participant. Each change of the
// leader wakes every follower.
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

// leader reads the leader with a watch that fires when the leader may have changed.
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
