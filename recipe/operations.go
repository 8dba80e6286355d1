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
	_, err := o.results(ctx, ops...)
	return err
}

// results is do with the results, which are nil after a lost reply.
func (o operations) results(ctx context.Context, ops ...session.Op) ([]session.OpResult, error) {
	for {
		marker, err := o.marker(ctx)
		if err != nil {
			return nil, err
		}
		results, applied, err := marker.Multi(ctx, ops...)
		if applied {
			err = nil
		}
		if errors.Is(err, session.ErrProtection) {
			continue // nothing was applied; another marker will do
		}
		if errors.Is(err, session.ErrUnknown) && errors.Is(err, session.ErrNoNode) {
			return nil, fmt.Errorf("%w: %s", session.ErrUnknown, err.Error())
		}
		o.keep(marker)
		return results, err
	}
}

// keep keeps a marker for the next multi.
func (o operations) keep(marker *session.ProtectedMulti) {
	select {
	case o.idle <- marker:
	default:
		abandon(o.s, marker.Path())
	}
}

// dir returns the directory of the markers.
func (o operations) dir() string { return o.path + "-ops" }

// version returns the data version of the directory of the markers. Our marker keeps
// the server from removing the directory, so the version never comes back.
func (o operations) version(ctx context.Context) (int32, error) {
	marker, err := o.marker(ctx)
	if err != nil {
		return 0, err
	}
	o.keep(marker)
	stat, _, err := o.s.Exists(ctx, o.dir())
	return stat.Version, err
}

func (o operations) marker(ctx context.Context) (*session.ProtectedMulti, error) {
	select {
	case m := <-o.idle:
		return m, nil
	default:
		return session.NewProtectedMulti(ctx, o.s, o.path)
	}
}
