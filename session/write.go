package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/internal/jute"
)

// Mode is the kind of a znode to create: one of the constants, or a result of
// PersistentTTL or PersistentSequentialTTL.
type Mode int64

// Modes of Create.
const (
	Persistent           = Mode(jute.FlagPersistent)
	Ephemeral            = Mode(jute.FlagEphemeral)
	PersistentSequential = Mode(jute.FlagSequential)
	EphemeralSequential  = Mode(jute.FlagEphemeralSequential)
	Container            = Mode(jute.FlagContainer) // deleted by the server some time after its last child
)

const (
	flagBits = 8            // of a Mode; above them stands the TTL in milliseconds
	maxTTL   = 1<<40 - 1    // milliseconds that a server takes
	badTTL   = Mode(1 << 7) // a TTL outside 1 ms to maxTTL
)

// PersistentTTL is the mode of a persistent znode with a TTL. The server deletes the
// znode when it has no children and no client has set its data for ttl: 1 ms to 2^40-1 ms
// (34 years). The server checks about once a minute. It must run with
// extendedTypesEnabled=true, which is off by default. Otherwise Create returns an error
// that matches ErrUnimplemented.
func PersistentTTL(ttl time.Duration) Mode { return withTTL(jute.FlagPersistentTTL, ttl) }

// PersistentSequentialTTL is PersistentTTL with a number after the name.
func PersistentSequentialTTL(ttl time.Duration) Mode {
	return withTTL(jute.FlagPersistentSequentialTTL, ttl)
}

func withTTL(flag int32, ttl time.Duration) Mode {
	ms := ttl.Milliseconds()
	if ms < 1 || ms > maxTTL {
		return badTTL
	}
	return Mode(ms)<<flagBits | Mode(flag)
}

func (m Mode) flags() int32 { return int32(m & (1<<flagBits - 1)) }

// TTL returns how long a znode lives without a write; 0: forever.
func (m Mode) TTL() time.Duration { return time.Duration(m>>flagBits) * time.Millisecond }

// Sequential reports whether the server appends a number to the name.
func (m Mode) Sequential() bool {
	return m == PersistentSequential || m == EphemeralSequential || m.flags() == jute.FlagPersistentSequentialTTL
}

// Ephemeral reports whether the znode ends with the session.
func (m Mode) Ephemeral() bool { return m == Ephemeral || m == EphemeralSequential }

func (m Mode) op() int32 {
	switch {
	case m == Container:
		return jute.OpCreateContainer
	case m.TTL() > 0:
		return jute.OpCreateTTL
	}
	return jute.OpCreate2
}

// Create creates a znode and returns its path and its Stat. In the sequential modes the
// server appends a number to the path. Without acl the znode gets the session's ACL. An
// error that matches ErrUnknown means that the znode may exist; CreateProtected finds
// out.
func (s *Session) Create(ctx context.Context, path string, data []byte, mode Mode, acl ...ACL) (string, Stat, error) {
	var created string
	var st Stat
	r := &request{op: mode.op(), path: path, write: true, result: []any{&created, &st}}
	if err := validateCreate(path, mode); err != nil {
		return "", st, r.fail(err)
	}
	r.frame = newFrame(r.op, s.createArgs(path, data, acl, mode)...)
	if _, err := s.exchange(ctx, r); err != nil {
		return "", Stat{}, err
	}
	created = strip(s.cfg.Chroot, created)
	if err := checkCreated(created, path); err != nil {
		return "", Stat{}, r.fail(err)
	}
	return created, st, nil
}

func checkCreated(created, path string) error {
	if !strings.HasPrefix(created, path) || ValidatePath(created) != nil {
		return fmt.Errorf("%w: the server says that it created %q", ErrUnknown, created)
	}
	return nil
}

func (s *Session) createArgs(path string, data []byte, acl []ACL, mode Mode) []any {
	if len(acl) == 0 {
		acl = s.acl()
	}
	args := []any{full(s.cfg.Chroot, path), present(data), acl, mode.flags()}
	if mode.TTL() > 0 {
		args = append(args, mode.TTL().Milliseconds())
	}
	return args
}

// present returns data that is not nil: no data and empty data are different znodes to
// other clients.
func present(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

// validateCreate also accepts the path of a sequential znode whose name is only the
// number, "/dir/".
func validateCreate(path string, mode Mode) error {
	switch {
	case mode == badTTL:
		return fmt.Errorf("%w: the TTL is outside 1 ms to %d ms", ErrBadArguments, maxTTL)
	case mode.TTL() == 0 && (mode < Persistent || mode > Container):
		return fmt.Errorf("%w: create mode %d", ErrBadArguments, mode)
	}
	if mode.Sequential() {
		return ValidatePath(path + "0")
	}
	return ValidatePath(path)
}

// Set replaces the data of a znode if it is at version; -1 is any.
func (s *Session) Set(ctx context.Context, path string, data []byte, version int32) (Stat, error) {
	var st Stat
	err := s.write(ctx, jute.OpSetData, path, []any{present(data), version}, &st)
	return st, err
}

// Delete deletes a znode that has no children if it is at version; -1 is any.
func (s *Session) Delete(ctx context.Context, path string, version int32) error {
	return s.write(ctx, jute.OpDelete, path, []any{version})
}

// SetACL replaces the ACL of a znode if it is at aversion; -1 is any.
func (s *Session) SetACL(ctx context.Context, path string, acl []ACL, aversion int32) (Stat, error) {
	var st Stat
	err := s.write(ctx, jute.OpSetACL, path, []any{acl, aversion}, &st)
	return st, err
}

// maxTree bounds how many znodes DeleteTree deletes.
const maxTree = 1_000_000

// DeleteTree deletes a znode with everything below it, the deepest first. It lists the
// subtree and calls check, if not nil, with each path. When check returns an error,
// DeleteTree deletes nothing and returns it. Znodes that are gone count as deleted.
//
// A delete whose outcome is unknown is repeated until ctx or the session ends, or until
// the policy of the context ([WithRetry]) gives up. When another client creates a znode
// below path meanwhile, DeleteTree returns ErrNotEmpty. It returns ErrTooLarge for more
// than a million znodes, and ErrBadPath for the root.
func (s *Session) DeleteTree(ctx context.Context, path string, check func(path string) error) error {
	if path == "/" {
		return &Error{Op: "delete", Path: path, Err: ErrBadPath}
	}
	paths, err := s.subtree(ctx, path)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if check == nil {
			break
		}
		if err := check(p); err != nil {
			return err
		}
	}
	for _, p := range slices.Backward(paths) {
		if err := s.deleteSurely(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// subtree lists a znode and what is below it, each parent before its children.
func (s *Session) subtree(ctx context.Context, path string) ([]string, error) {
	paths := []string{path}
	for i := 0; i < len(paths); i++ {
		names, _, err := s.Children(ctx, paths[i])
		if err != nil && !errors.Is(err, ErrNoNode) {
			return nil, err
		}
		if len(paths)+len(names) > maxTree {
			return nil, fmt.Errorf("more than %d znodes below %s, delete a part of them first: %w", maxTree, path, ErrTooLarge)
		}
		for _, name := range names {
			paths = append(paths, JoinPath(paths[i], name))
		}
	}
	return paths, nil
}

// deleteSurely deletes a znode, again while the outcome is unknown.
func (s *Session) deleteSurely(ctx context.Context, path string) error {
	again := newTries(ctx, eachBackoff)
	for {
		err := s.Delete(ctx, path, -1)
		switch {
		case err == nil, errors.Is(err, ErrNoNode):
			return nil
		case ActionFor(err) != Retry:
			return err
		}
		if again.wait(ctx, s) != nil {
			return err
		}
	}
}

// Op is one operation of a Multi.
type Op struct {
	op      int32
	path    string
	data    []byte
	acl     []ACL
	mode    Mode
	version int32
}

// Path returns the path that the operation is on.
func (o Op) Path() string { return o.path }

// CreateOp creates a znode, as Session.Create does.
func CreateOp(path string, data []byte, mode Mode, acl ...ACL) Op {
	return Op{op: mode.op(), path: path, data: data, mode: mode, acl: acl}
}

// DeleteOp deletes a znode at a version; -1 is any.
func DeleteOp(path string, version int32) Op {
	return Op{op: jute.OpDelete, path: path, version: version}
}

// SetOp replaces the data of a znode at a version; -1 is any.
func SetOp(path string, data []byte, version int32) Op {
	return Op{op: jute.OpSetData, path: path, data: data, version: version}
}

// CheckOp fails the multi unless the znode exists at a version; -1 is any.
func CheckOp(path string, version int32) Op {
	return Op{op: jute.OpCheck, path: path, version: version}
}

// OpResult is the result of one operation of a Multi that was applied.
type OpResult struct {
	Path string // what a create created
	// Stat is the Stat after a set or create. Servers do not return the Stat of most creates.
	// Then the zxids are those of the multi, the owner is this session if the mode was
	// ephemeral, and the times are zero.
	Stat Stat
}

// MultiError names the operation that made a Multi fail. No operation was applied.
type MultiError struct {
	Index int    // of the operation, from 0
	Op    string // as ZooKeeper names it: "create", "delete", ...
	Path  string // that the operation was on
	Err   error  // of the operation: ErrNoNode, ErrBadVersion, ...
}

func (e *MultiError) Error() string {
	return fmt.Sprintf("operation %d on %s: %s", e.Index, e.Path, e.Err)
}

func (e *MultiError) Unwrap() error { return e.Err }

// Multi applies all operations or none. When one fails, the error matches both
// *MultiError and that operation's error.
func (s *Session) Multi(ctx context.Context, ops ...Op) ([]OpResult, error) {
	r := &request{op: jute.OpMulti, write: true}
	if len(ops) == 0 {
		return nil, nil
	}
	if err := s.usable("/"); err != nil {
		return nil, r.fail(err)
	}
	var args []any
	for i := range ops {
		err := ValidatePath(ops[i].path)
		if jute.IsCreate(ops[i].op) {
			err = validateCreate(ops[i].path, ops[i].mode)
		}
		if err != nil {
			return nil, r.fail(&MultiError{Index: i, Op: jute.OpName(ops[i].op), Path: ops[i].path, Err: err})
		}
		args = append(args, s.opArgs(&ops[i]))
	}
	r.frame = newFrame(r.op, args, endOfMulti)
	var results []OpResult
	r.decode = func(d *jute.Decoder) error {
		var err error
		results, err = s.decodeResults(d, ops)
		return err
	}
	if _, err := s.exchange(ctx, r); err != nil {
		return nil, err
	}
	for i := range ops {
		if !jute.IsCreate(ops[i].op) {
			continue
		}
		if err := checkCreated(results[i].Path, ops[i].path); err != nil {
			return nil, r.fail(err)
		}
		if st := &results[i].Stat; st.Czxid == 0 {
			st.Czxid, st.Mzxid, st.Pzxid, st.DataLength = r.zxid, r.zxid, r.zxid, int32(len(ops[i].data))
			if ops[i].mode.Ephemeral() {
				st.EphemeralOwner = s.ID()
			}
		}
	}
	return results, nil
}

// endOfMulti stands behind the last operation of a multi or multiRead.
var endOfMulti = &jute.MultiHeader{Type: -1, Done: true, Err: -1}

func (s *Session) opArgs(o *Op) []any {
	args := []any{jute.MultiHeader{Type: o.op, Err: -1}}
	switch path := full(s.cfg.Chroot, o.path); {
	case jute.IsCreate(o.op):
		return append(args, s.createArgs(o.path, o.data, o.acl, o.mode)...)
	case o.op == jute.OpSetData:
		return append(args, path, present(o.data), o.version)
	default: // delete, check
		return append(args, path, o.version)
	}
}

// decodeResults reads the results of a multi. A failed multi has an error for every
// operation: 0 before the operation that failed, "rolled back" after it.
func (s *Session) decodeResults(d *jute.Decoder, ops []Op) ([]OpResult, error) {
	results := make([]OpResult, len(ops))
	var failed *MultiError
	for i := range ops {
		var h jute.MultiHeader
		if err := d.Get(&h); h.Done || err != nil {
			if failed != nil {
				return nil, failed
			}
			return nil, fmt.Errorf("multi of %d operations has %d results", len(ops), i)
		}
		switch h.Type {
		case jute.OpError:
			code := d.Int32()
			if code != jute.ErrCodeOK && (failed == nil || errors.Is(failed.Err, ErrRolledBack)) {
				failed = &MultiError{Index: i, Op: jute.OpName(ops[i].op), Path: ops[i].path, Err: codeError(code)}
			}
		case jute.OpCreate:
			results[i].Path = strip(s.cfg.Chroot, d.String())
		case jute.OpCreate2, jute.OpCreateContainer, jute.OpCreateTTL:
			results[i].Path = strip(s.cfg.Chroot, d.String())
			_ = d.Get(&results[i].Stat)
		case jute.OpSetData:
			_ = d.Get(&results[i].Stat)
		case jute.OpDelete, jute.OpCheck:
		default:
			return nil, fmt.Errorf("result of type %d", h.Type)
		}
	}
	if failed != nil {
		return nil, failed
	}
	return results, nil
}

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
	if err := s.usable(path); err != nil {
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
