package recipe

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// cleanupWait is how long a cancelled recipe waits for its own clean-up. After
// that the clean-up continues in the background.
const cleanupWait = 2 * time.Second

// child returns the path of a child of dir.
func child(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// base returns the last element of a path.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// withParents runs a create. When the parents are missing, it makes them and runs
// the create again. The server may remove a parent in between, if that is a
// container, so withParents tries a few times.
func withParents(ctx context.Context, s *session.Session, path string, create func() error) error {
	return withDirs(ctx, path, create, s.CreateParents)
}

// withContainers is withParents for recipes that leave nothing behind. The parents
// are containers: the server removes them some time after their last child.
func withContainers(ctx context.Context, s *session.Session, path string, create func() error) error {
	return withDirs(ctx, path, create, func(ctx context.Context, path string) error { return createContainers(ctx, s, path) })
}

func withDirs(ctx context.Context, path string, create func() error, parents func(context.Context, string) error) error {
	err := create()
	for range 5 {
		if !errors.Is(err, session.ErrNoNode) {
			return err
		}
		if perr := parents(ctx, path); perr != nil {
			return fmt.Errorf("create parents of %s: %w", path, perr)
		}
		err = create()
	}
	return err
}

// createContainers makes the missing parents of path. They are persistent on a
// server that has no containers.
func createContainers(ctx context.Context, s *session.Session, path string) error {
	dir, _ := session.SplitPath(path)
	if dir == "/" {
		return nil
	}
	_, _, err := s.Create(ctx, dir, nil, session.Container)
	if errors.Is(err, session.ErrNoNode) {
		if err = createContainers(ctx, s, dir); err != nil {
			return err
		}
		_, _, err = s.Create(ctx, dir, nil, session.Container)
	}
	if err == nil || errors.Is(err, session.ErrNodeExists) {
		return nil
	}
	// CreateParents reports any other error.
	return s.CreateParents(ctx, path)
}

// createContender creates the znode of a contender. The name carries a GUID, so
// after a lost reply the znode can be found and is not created twice (Curator's
// protected create).
func createContender(ctx context.Context, s *session.Session, dir string, n naming, data []byte, acl []session.ACL) (string, session.Stat, error) {
	var path string
	var stat session.Stat
	parents := withContainers
	if n.kind() == kindElection {
		parents = withParents
	}
	err := parents(ctx, s, child(dir, "x"), func() error {
		var err error
		if n.hex {
			path, stat, err = createHex(ctx, s, dir, n.mark, data, acl)
		} else {
			path, stat, err = s.CreateProtected(ctx, dir, n.mark, data, session.EphemeralSequential, acl...)
		}
		return err
	})
	if _, seq, _ := splitSequence(path); err == nil && seq.spent() {
		abandon(s, path)
		return "", stat, ErrSequence
	}
	return path, stat, err
}

// createHex is the protected create in kazoo's naming: the name begins with the
// GUID without dashes.
func createHex(ctx context.Context, s *session.Session, dir, mark string, data []byte, acl []session.ACL) (string, session.Stat, error) {
	prefix := newHex() + mark
	for {
		path, stat, err := s.Create(ctx, child(dir, prefix), data, session.EphemeralSequential, acl...)
		if err == nil {
			return path, stat, nil
		}
		if !errors.Is(err, session.ErrUnknown) {
			if ctx.Err() != nil {
				inBackground(s, func(ctx context.Context) error { return removePrefix(ctx, s, dir, prefix) })
			}
			return "", session.Stat{}, err
		}
		path, stat, err = findPrefix(ctx, s, dir, prefix)
		if err != nil {
			inBackground(s, func(ctx context.Context) error { return removePrefix(ctx, s, dir, prefix) })
			return "", session.Stat{}, err
		}
		if path != "" {
			return path, stat, nil
		}
	}
}

// findPrefix looks for our own znode after a lost reply. The sync makes a
// server that lags show what was applied before.
func findPrefix(ctx context.Context, s *session.Session, dir, prefix string) (string, session.Stat, error) {
	if err := s.Sync(ctx, dir); err != nil && !errors.Is(err, session.ErrNoNode) {
		return "", session.Stat{}, err
	}
	names, _, err := s.Children(ctx, dir)
	if err != nil {
		return "", session.Stat{}, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		stat, ok, err := s.Exists(ctx, child(dir, name))
		if err != nil {
			return "", session.Stat{}, err
		}
		if ok && stat.EphemeralOwner == s.ID() {
			return child(dir, name), stat, nil
		}
	}
	return "", session.Stat{}, nil
}

// removePrefix deletes the znode that an abandoned create may have left.
func removePrefix(ctx context.Context, s *session.Session, dir, prefix string) error {
	path, _, err := findPrefix(ctx, s, dir, prefix)
	if err != nil || path == "" {
		return err
	}
	return removeOwn(ctx, s, path)
}

// createOwned creates an ephemeral znode under a fixed name. After a lost reply it
// reads the owner: when that is our session, the create was applied.
func createOwned(ctx context.Context, s *session.Session, path string, data []byte) (session.Stat, error) {
	lost := false
	for {
		_, stat, err := s.Create(ctx, path, data, session.Ephemeral)
		if err == nil {
			return stat, nil
		}
		unknown := errors.Is(err, session.ErrUnknown)
		if lost = lost || unknown; !unknown && (!lost || !errors.Is(err, session.ErrNodeExists)) {
			return session.Stat{}, err
		}
		found, ok, ferr := lookAgain(ctx, s, path)
		if ferr != nil {
			abandonOwned(s, path)
			return session.Stat{}, ferr
		}
		if ok && found.EphemeralOwner == s.ID() {
			return found, nil
		}
		if ok {
			return session.Stat{}, fmt.Errorf("create %s: %w", path, session.ErrNodeExists)
		}
	}
}

// lookAgain is an exists that shows what was applied before it was called.
func lookAgain(ctx context.Context, s *session.Session, path string) (session.Stat, bool, error) {
	if err := s.Sync(ctx, path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return session.Stat{}, false, err
	}
	return s.Exists(ctx, path)
}

// removeOwn deletes a znode of ours. A znode that is already gone counts as success.
// After a lost reply it tries again.
func removeOwn(ctx context.Context, s *session.Session, path string) error {
	for {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			return nil
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown):
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
}

// removeExactly deletes the znode at path if it still has that czxid. It is for
// names that another client may use again: after a lost reply, or a deletion by a
// third party, the znode at path may be a different one.
func removeExactly(ctx context.Context, s *session.Session, path string, czxid int64) error {
	for {
		stat, exists, err := lookAgain(ctx, s, path)
		if err != nil {
			return fmt.Errorf("delete %s: %w", path, err)
		}
		if !exists || stat.Czxid != czxid {
			return nil
		}
		err = s.Delete(ctx, path, stat.Version)
		switch {
		case err == nil, errors.Is(err, session.ErrNoNode):
			return nil
		case ctx.Err() != nil || !errors.Is(err, session.ErrUnknown) && !errors.Is(err, session.ErrBadVersion):
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
}

// abandonExactly is removeExactly in the background.
func abandonExactly(s *session.Session, path string, czxid int64) {
	inBackground(s, func(ctx context.Context) error { return removeExactly(ctx, s, path, czxid) })
}

// inBackground runs a clean-up under the session's context. It waits for the
// clean-up only for a moment: a cancelled caller must not hang while the connection
// is gone. The clean-up ends with the session, and the server then deletes the
// ephemeral znodes.
func inBackground(s *session.Session, clean func(context.Context) error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// An error is permanent or the session has ended, and the caller has
		// returned.
		_ = clean(s.Context())
	}()
	timer := time.NewTimer(cleanupWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// abandonOwned cleans up, in the background, after a create under a fixed name whose
// outcome is unknown. It deletes the znode if this session owns it.
func abandonOwned(s *session.Session, path string) {
	inBackground(s, func(ctx context.Context) error {
		stat, ok, err := lookAgain(ctx, s, path)
		if err != nil || !ok || stat.EphemeralOwner != s.ID() {
			return err
		}
		return removeOwn(ctx, s, path)
	})
}

// abandon deletes a znode of ours in the background.
func abandon(s *session.Session, path string) {
	inBackground(s, func(ctx context.Context) error { return removeOwn(ctx, s, path) })
}

// newHex returns a GUID as 32 hex digits.
func newHex() string {
	id := uuid.New()
	return hex.EncodeToString(id[:])
}
