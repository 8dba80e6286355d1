package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ProtectedPrefix returns the beginning of a protected znode's name: "_c_" and a GUID,
// in the form of Apache Curator.
func ProtectedPrefix(guid string) string { return "_c_" + guid + "-" }

// CreateProtected creates <dir>/_c_<GUID>-<suffix>. In the sequential modes the server
// appends a number. When the reply is lost, CreateProtected looks for the GUID among the
// children of dir, as often as it takes. So it never creates two znodes, and always
// finds the one it created. When ctx ends first, it deletes the znode in the background,
// if it was created.
func (s *Session) CreateProtected(ctx context.Context, dir, suffix string, data []byte, mode Mode, acl ...ACL) (string, Stat, error) {
	return s.CreateUnique(ctx, dir, ProtectedPrefix(uuid.NewString()), suffix, data, mode, acl...)
}

// CreateUnique is CreateProtected for a name that begins with another text than a GUID in
// Curator's form. No other znode's name may begin with it.
func (s *Session) CreateUnique(ctx context.Context, dir, name, suffix string, data []byte, mode Mode, acl ...ACL) (string, Stat, error) {
	for {
		path, st, err := s.Create(ctx, JoinPath(dir, name+suffix), data, mode, acl...)
		if err == nil {
			return s.owned(ctx, path, st, mode)
		}
		if !errors.Is(err, ErrUnknown) {
			return "", Stat{}, err
		}
		path, st, found, lookErr := s.findProtected(ctx, dir, name, mode)
		switch {
		case lookErr != nil:
			s.abandon(dir, name, mode)
			return "", Stat{}, fmt.Errorf("%w: %w", err, lookErr)
		case found:
			return path, st, nil
		}
	}
}

// owned refuses an ephemeral znode of another session. A request of this package never
// runs in a later session, but a server or a proxy may behave differently.
func (s *Session) owned(ctx context.Context, path string, st Stat, mode Mode) (string, Stat, error) {
	if !mode.Ephemeral() || st.EphemeralOwner == s.ID() {
		return path, st, nil
	}
	_ = s.Delete(context.WithoutCancel(ctx), path, -1)
	return "", Stat{}, &Error{Op: "create2", Path: path, Err: fmt.Errorf("%w: owner is session %s", ErrExpired, hexID(st.EphemeralOwner))}
}

// findProtected looks for the child of dir whose name begins with name, which is unique.
// It syncs first, because a server that lags may not show the child yet.
func (s *Session) findProtected(ctx context.Context, dir, name string, mode Mode) (string, Stat, bool, error) {
	if err := s.Sync(ctx, dir); err != nil {
		return "", Stat{}, false, err
	}
	names, _, err := s.Children(ctx, dir)
	if err != nil && !errors.Is(err, ErrNoNode) {
		return "", Stat{}, false, err
	}
	for _, n := range names {
		if !strings.HasPrefix(n, name) {
			continue
		}
		path := JoinPath(dir, n)
		st, ok, err := s.Exists(ctx, path)
		if err != nil {
			return "", Stat{}, false, err
		}
		if ok && (!mode.Ephemeral() || st.EphemeralOwner == s.ID()) {
			return path, st, true, nil
		}
	}
	return "", Stat{}, false, nil
}

// abandon deletes in the background the znode that an abandoned create may have made. An
// ephemeral znode also ends with the session.
func (s *Session) abandon(dir, name string, mode Mode) {
	s.background(func() {
		for s.ctx.Err() == nil {
			path, _, found, err := s.findProtected(s.ctx, dir, name, mode)
			if err == nil && found {
				err = s.Delete(s.ctx, path, -1)
			}
			if err == nil || errors.Is(err, ErrNoNode) || ActionFor(err) == GiveUp {
				return
			}
			_ = s.Sleep(s.ctx, time.Second)
		}
	})
}

// background runs f, and returns true, unless the session has ended. The end of the
// session waits until f has returned.
func (s *Session) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endCause == nil {
		s.cleanups.Go(f)
	}
	return s.endCause == nil
}

// CreateParents makes the missing parents of path: persistent, empty, with the session's
// ACL. It does not make the chroot itself.
func (s *Session) CreateParents(ctx context.Context, path string) error {
	if err := ValidatePath(path); err != nil {
		return &Error{Op: "create2", Path: path, Err: err}
	}
	dir, _ := SplitPath(path)
	return s.createDir(ctx, dir)
}

func (s *Session) createDir(ctx context.Context, dir string) error {
	if dir == "/" {
		return nil
	}
	for {
		_, _, err := s.Create(ctx, dir, nil, Persistent)
		switch {
		case err == nil, errors.Is(err, ErrNodeExists):
			return nil
		case errors.Is(err, ErrUnknown) && ctx.Err() == nil && s.ctx.Err() == nil:
			continue // it exists by now, or is created
		case errors.Is(err, ErrNoAuth): // it may be there although we may not create it
			if _, ok, e := s.Exists(ctx, dir); e == nil && ok {
				return nil
			}
			return err
		case !errors.Is(err, ErrNoNode):
			return err
		}
		up, _ := SplitPath(dir)
		if up == "/" {
			return fmt.Errorf("%w (chroot %s does not exist)", err, s.cfg.Chroot)
		}
		if err := s.createDir(ctx, up); err != nil {
			return err
		}
	}
}
