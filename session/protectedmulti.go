package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ProtectedMulti makes the outcome of a multi known even when its reply is lost.
//
//	<path>-ops/_c_<GUID>   (E) the marker; each multi sets it, at a version known here
//
// After a lost reply it reads the marker. If the version is one higher, the multi was
// applied; if it is the same, it was not. If the marker is gone with its session, the
// outcome stays unknown.
type ProtectedMulti struct {
	s    *Session
	path string

	mu      sync.Mutex // one multi at a time: its version is the next one's
	version int32
	lost    bool // the version is unknown, see recover
	found   int64
}

// ErrProtection means that a multi was not applied because another client deleted or set
// its marker. The same operations may be tried with a new marker.
var ErrProtection = errors.New("the marker is not as it was left")

// NewProtectedMulti creates a marker next to path, with its parents.
func NewProtectedMulti(ctx context.Context, s *Session, path string) (*ProtectedMulti, error) {
	dir := path + "-ops"
	for {
		p, st, err := s.CreateProtected(ctx, dir, "", nil, Ephemeral)
		if err == nil {
			return &ProtectedMulti{s: s, path: p, version: st.Version}, nil
		}
		if !errors.Is(err, ErrNoNode) {
			return nil, fmt.Errorf("create marker: %w", err)
		}
		if err := s.createDir(ctx, dir); err != nil {
			return nil, fmt.Errorf("create marker: %w", err)
		}
	}
}

// Path returns the path of the marker's znode.
func (m *ProtectedMulti) Path() string { return m.path }

// Found returns the zxid of the last multi whose reply was lost and that was applied, as
// the marker showed it. The znodes of that multi have it too.
func (m *ProtectedMulti) Found() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.found
}

// Multi applies all operations or none, together with a set of the marker, and reports
// whether they were applied. It returns the results only if the reply was not lost. If
// applied is false and the error does not match ErrUnknown, nothing was applied.
func (m *ProtectedMulti) Multi(ctx context.Context, ops ...Op) ([]OpResult, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost { // an earlier multi ended in doubt
		if _, err := m.read(ctx); err != nil {
			return nil, false, err
		}
	}
	for {
		results, err := m.s.Multi(ctx, append([]Op{SetOp(m.path, nil, m.version)}, ops...)...)
		if err == nil {
			m.version++
			return results[1:], true, nil
		}
		if me, ok := errors.AsType[*MultiError](err); ok {
			if me.Index--; me.Index < 0 {
				// Hide the error, because callers match errors of their own znodes.
				return nil, false, fmt.Errorf("%s: %w: %v", m.path, ErrProtection, me.Err) //nolint:errorlint // hidden on purpose
			}
			return nil, false, err
		}
		if !errors.Is(err, ErrUnknown) {
			return nil, false, err
		}
		m.lost = true
		was := m.version
		now, readErr := m.read(ctx)
		if readErr != nil {
			return nil, false, fmt.Errorf("%w: %w", err, readErr)
		}
		if now != was {
			return nil, true, nil
		}
	}
}

// read reads the marker's version from an up-to-date server.
func (m *ProtectedMulti) read(ctx context.Context) (int32, error) {
	if err := m.s.Sync(ctx, m.path); err != nil {
		return 0, fmt.Errorf("read marker: %w", err)
	}
	st, ok, err := m.s.Exists(ctx, m.path)
	if err != nil {
		return 0, fmt.Errorf("read marker: %w", err)
	}
	if !ok {
		return 0, fmt.Errorf("marker %s is gone", m.path)
	}
	m.version, m.lost, m.found = st.Version, false, st.Mzxid
	return st.Version, nil
}

// Close deletes the marker.
func (m *ProtectedMulti) Close(ctx context.Context) error {
	err := m.s.Delete(ctx, m.path, -1)
	if errors.Is(err, ErrNoNode) {
		return nil
	}
	return err
}
