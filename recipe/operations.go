package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// operations sends multis that change shared znodes. After a lost reply those znodes
// do not show whether the multi was applied, because other clients change them too.
// So each multi also sets a marker of this session,
//
//	<path>-ops/_c_<uuid>    ephemeral
//
// and the version of the marker shows it. A marker serves one multi at a time. Idle
// markers are kept.
type operations struct {
	s    *session.Session
	path string
	idle chan *session.ProtectedMulti
}

// idleMarkers bounds how many idle markers are kept. More may be in use.
const idleMarkers = 64

func newOperations(s *session.Session, path string) operations {
	return operations{s: s, path: path, idle: make(chan *session.ProtectedMulti, idleMarkers)}
}

// do sends ops, and returns nil when they were applied, exactly once. It returns an
// error that matches session.ErrUnknown when the outcome is unknown: ctx or the
// session ended, or another client deleted the marker. Such an error matches no other
// error of a server.
func (o operations) do(ctx context.Context, ops ...session.Op) error {
	for {
		marker, err := o.marker(ctx)
		if err != nil {
			return err
		}
		_, applied, err := marker.Multi(ctx, ops...)
		if applied {
			err = nil
		}
		if errors.Is(err, session.ErrProtection) {
			continue // nothing was applied; another marker will do
		}
		if errors.Is(err, session.ErrUnknown) && errors.Is(err, session.ErrNoNode) {
			return fmt.Errorf("%w: %s", session.ErrUnknown, err.Error())
		}
		select {
		case o.idle <- marker:
		default:
			abandon(o.s, marker.Path())
		}
		return err
	}
}

func (o operations) marker(ctx context.Context) (*session.ProtectedMulti, error) {
	select {
	case m := <-o.idle:
		return m, nil
	default:
		return session.NewProtectedMulti(ctx, o.s, o.path)
	}
}
