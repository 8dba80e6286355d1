package recipe

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// cleanupWait is how long a cancelled recipe waits for its own clean-up. After
// that the clean-up continues in the background.
const cleanupWait = 2 * time.Second

func child(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

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

// operations sends multis that change shared znodes. After a lost reply those znodes
// do not show whether the multi was applied, because other clients change them too.
// So each multi also sets a marker of this session,
//
//	<path>-ops/_c_<uuid>    ephemeral
//
// and the version of the marker shows it. A marker serves one multi at a time. Idle
// markers are kept.
//
// Eras. Somebody may delete a znode, and the next client creates it again. The new znode
// can have the version of the old one, and a new item of a queue its name. So the client
// that creates the znode also sets the data of the directory of the markers. Nobody can
// remove that directory while a client has a marker in it, so its version never comes
// back: it is the era. A multi that relies on an earlier read checks the era of that read.
// Other programs create the znode without a new era. For them a client only compares the
// creation that it reads, before the multi.
type operations struct {
	s    *session.Session
	path string
	idle chan *marker

	mu  sync.Mutex // mu guards the fields below
	age int32      // the era, as it was last read; 0: unknown
}

// errEra means that a znode is not the one that was read.
var errEra = errors.New("made anew since it was read")

// idleMarkers bounds how many idle markers are kept. More may be in use.
const idleMarkers = 64

func newOperations(s *session.Session, path string) *operations {
	return &operations{s: s, path: path, idle: make(chan *marker, idleMarkers)}
}

// do sends ops, and returns nil when they were applied, exactly once. It returns an
// error that matches session.ErrUnknown when the outcome is unknown: ctx or the
// session ended, or another client deleted the marker. Such an error matches no other
// error of a server. It returns errEra when the check of the era has failed.
func (o *operations) do(ctx context.Context, ops ...session.Op) error {
	_, _, err := o.results(ctx, ops...)
	return err
}

// results is do with the results. After a lost reply there are none, but the zxid of the
// multi.
func (o *operations) results(ctx context.Context, ops ...session.Op) ([]session.OpResult, int64, error) {
	for {
		marker, err := o.marker(ctx)
		if err != nil {
			return nil, 0, err
		}
		results, zxid, err := marker.multi(ctx, o.s, ops)
		if errors.Is(err, errMarker) {
			continue // nothing was applied; another marker will do
		}
		o.keep(marker)
		return results, zxid, o.unlessEra(err)
	}
}

// keep keeps a marker for the next multi.
func (o *operations) keep(m *marker) {
	select {
	case o.idle <- m:
	default:
		abandon(o.s, m.path)
	}
}

func (o *operations) dir() string { return o.path + "-ops" }

// era returns the era, as it was last read. Call it before the read that relies on it.
func (o *operations) era(ctx context.Context) (int32, error) {
	o.mu.Lock()
	age := o.age
	o.mu.Unlock()
	if age != 0 {
		return age, nil
	}
	marker, err := o.marker(ctx)
	var stat session.Stat
	if err == nil {
		o.keep(marker)
		stat, _, err = o.s.Exists(ctx, o.dir())
	}
	if err != nil {
		return 0, fmt.Errorf("read the era of %s: %w", o.path, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.age = stat.Version + 1
	return o.age, nil
}

// sameEra makes a multi fail when the era has ended.
func (o *operations) sameEra(era int32) session.Op { return session.CheckOp(o.dir(), era-1) }

// newEra begins an era. It belongs into the multi that makes the znode.
func (o *operations) newEra() session.Op { return session.SetOp(o.dir(), nil, -1) }

// unlessEra returns errEra for a multi that failed because of its era, and forgets that
// era. It returns any other error as it is.
func (o *operations) unlessEra(err error) error {
	failed, ok := errors.AsType[*session.MultiError](err)
	if !ok || failed.Path != o.dir() {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.age = 0
	return errEra
}

func (o *operations) marker(ctx context.Context) (*marker, error) {
	select {
	case m := <-o.idle:
		return m, nil
	default:
	}
	if err := context.Cause(o.s.Context()); err != nil {
		return nil, err
	}
	m := &marker{}
	err := withParents(ctx, o.s, child(o.dir(), "x"), func() error {
		path, stat, err := o.s.CreateProtected(ctx, o.dir(), "", nil, session.Ephemeral)
		m.path, m.version = path, stat.Version
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create marker: %w", err)
	}
	return m, nil
}

// marker is a znode of this session that shows whether a multi was applied whose reply was
// lost: the multi also sets the marker, at a version known here.
type marker struct {
	path    string
	version int32 // -1: unknown, because a multi ended in doubt
}

// errMarker means that a multi was not applied because another client deleted or set its
// marker. The same operations may be tried with a new marker.
var errMarker = errors.New("the marker is not as it was left")

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
