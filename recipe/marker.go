package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// marker is a znode of this session that shows whether a multi was applied whose reply was
// lost: the multi also sets the marker, at a version known here.
type marker struct {
	path    string
	version int32 // -1: unknown, because a multi ended in doubt
}

// errMarker means that a multi was not applied because another client deleted or set its
// marker. The same operations may be tried with a new marker.
var errMarker = errors.New("the marker is not as it was left")

func newMarker(ctx context.Context, s *session.Session, dir string) (*marker, error) {
	m := &marker{}
	err := withParents(ctx, s, child(dir, "x"), func() error {
		path, stat, err := s.CreateProtected(ctx, dir, "", nil, session.Ephemeral)
		m.path, m.version = path, stat.Version
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create marker: %w", err)
	}
	return m, nil
}

// multi applies all operations or none. It returns the results, and after a lost reply the
// zxid instead. An error that does not match session.ErrUnknown means that nothing was
// applied.
func (m *marker) multi(ctx context.Context, s *session.Session, ops []session.Op) ([]session.OpResult, int64, error) {
	if m.version < 0 {
		if _, err := m.look(ctx, s); err != nil {
			return nil, 0, err
		}
	}
	for {
		results, err := s.Multi(ctx, append([]session.Op{session.SetOp(m.path, nil, m.version)}, ops...)...)
		failed, ok := errors.AsType[*session.MultiError](err)
		switch {
		case err == nil:
			m.version++
			return results[1:], 0, nil
		case ok && failed.Index == 0:
			return nil, 0, errMarker // the error of the server would look like one of a znode of the caller
		case ok:
			failed.Index--
			return nil, 0, err
		case !errors.Is(err, session.ErrUnknown):
			return nil, 0, err
		}
		was := m.version
		m.version = -1
		stat, lookErr := m.look(ctx, s)
		switch {
		case errors.Is(lookErr, errMarker): // it does not mean that nothing was applied
			return nil, 0, fmt.Errorf("%w: %s", err, lookErr.Error())
		case lookErr != nil:
			return nil, 0, fmt.Errorf("%w: %w", err, lookErr)
		case stat.Version != was:
			return nil, stat.Mzxid, nil
		}
	}
}

// look reads the marker's version from a server that has caught up.
func (m *marker) look(ctx context.Context, s *session.Session) (session.Stat, error) {
	stat, exists, err := lookAgain(ctx, s, m.path)
	switch {
	case err != nil:
		return stat, fmt.Errorf("read marker: %w", err)
	case !exists:
		return stat, errMarker
	}
	m.version = stat.Version
	return stat, nil
}
