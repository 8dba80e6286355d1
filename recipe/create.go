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
	if n.kind == kindElection {
		parents = withParents
	}
	err := parents(ctx, s, child(dir, "x"), func() error {
		var err error
		path, stat, err = s.CreateUnique(ctx, dir, n.unique(), n.mark, data, session.EphemeralSequential, acl...)
		return err
	})
	if _, seq, _ := splitSequence(path); err == nil && seq.spent() {
		abandon(s, path)
		return "", stat, ErrSequence
	}
	return path, stat, err
}

// lookAgain is an exists that shows what was applied before it was called.
func lookAgain(ctx context.Context, s *session.Session, path string) (session.Stat, bool, error) {
	if err := s.Sync(ctx, path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return session.Stat{}, false, err
	}
	return s.Exists(ctx, path)
}

// untilKnown repeats a write that may be applied twice, until its outcome is known or ctx
// has ended.
func untilKnown(ctx context.Context, write func() error) error {
	for {
		if err := write(); ctx.Err() != nil || !errors.Is(err, session.ErrUnknown) {
			return err
		}
	}
}

// removeOwn deletes a znode of ours. A znode that is already gone counts as success.
func removeOwn(ctx context.Context, s *session.Session, path string) error {
	err := untilKnown(ctx, func() error { return s.Delete(ctx, path, -1) })
	if err == nil || errors.Is(err, session.ErrNoNode) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", path, err)
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

// abandon deletes a znode of ours in the background.
func abandon(s *session.Session, path string) {
	inBackground(s, func(ctx context.Context) error { return removeOwn(ctx, s, path) })
}

// newHex returns a GUID as 32 hex digits.
func newHex() string {
	id := uuid.New()
	return hex.EncodeToString(id[:])
}
