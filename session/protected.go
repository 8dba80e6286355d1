package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ProtectedPrefix begins the name of a protected znode: "_c_" and a GUID, the form
// that Apache Curator gives them.
func ProtectedPrefix(guid string) string { return "_c_" + guid + "-" }

// CreateProtected creates <dir>/_c_<GUID>-<suffix>, with a number behind it for the
// sequential modes. When the reply is lost it looks for the GUID among the children
// of dir, as often as it takes: it never creates twice and never loses track. When
// ctx ends first, the znode is deleted in the background if it was created.
func (s *Session) CreateProtected(ctx context.Context, dir, suffix string, data []byte, mode Mode, acl ...ACL) (string, Stat, error) {
	name := ProtectedPrefix(uuid.NewString())
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

// owned refuses an ephemeral znode of another session. A request cannot wait for a
// later session here, but servers and proxies are not all alike.
func (s *Session) owned(ctx context.Context, path string, st Stat, mode Mode) (string, Stat, error) {
	if !mode.Ephemeral() || st.EphemeralOwner == s.ID() {
		return path, st, nil
	}
	_ = s.Delete(context.WithoutCancel(ctx), path, -1)
	return "", Stat{}, &Error{Op: "create2", Path: path, Err: fmt.Errorf("%w: owner is session %s", ErrExpired, hexID(st.EphemeralOwner))}
}

// findProtected looks for the child of dir whose name begins with name, which nobody
// else has. It syncs first: a server that lags would not show it yet.
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

// abandon deletes in the background what a create whose outcome nobody waits for
// may have made. Ephemeral ones end with the session anyway.
func (s *Session) abandon(dir, name string, mode Mode) {
	s.background(func() {
		for s.ctx.Err() == nil {
			path, _, found, err := s.findProtected(s.ctx, dir, name, mode)
			if err == nil && found {
				err = s.Delete(s.ctx, path, -1)
			}
			if err == nil || errors.Is(err, ErrNoNode) || IsPermanent(err) {
				return
			}
			_ = s.Sleep(s.ctx, time.Second)
		}
	})
}

// background runs f, unless the session has ended; its end is waited for.
func (s *Session) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endCause == nil {
		s.cleanups.Go(f)
	}
}

// CreateParents makes the parents of path that are missing: persistent, empty, with
// the session's ACL. The chroot itself is not made.
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
		case !errors.Is(err, ErrNoNode):
			return s.createdMeanwhile(ctx, dir, err)
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

// createdMeanwhile returns nil when dir is there although it could not be created:
// whoever may not create it may still find it.
func (s *Session) createdMeanwhile(ctx context.Context, dir string, err error) error {
	if !errors.Is(err, ErrNoAuth) {
		return err
	}
	if _, ok, e := s.Exists(ctx, dir); e == nil && ok {
		return nil
	}
	return err
}
