package session

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/internal/jute"
)

// Mode is the kind of a znode to create.
type Mode int32

// Modes of Create.
const (
	Persistent           = Mode(jute.FlagPersistent)
	Ephemeral            = Mode(jute.FlagEphemeral)
	PersistentSequential = Mode(jute.FlagSequential)
	EphemeralSequential  = Mode(jute.FlagEphemeralSequential)
	Container            = Mode(jute.FlagContainer) // deleted by the server some time after its last child
)

// Sequential reports whether the server appends a number to the name.
func (m Mode) Sequential() bool { return m == PersistentSequential || m == EphemeralSequential }

// Ephemeral reports whether the znode ends with the session.
func (m Mode) Ephemeral() bool { return m == Ephemeral || m == EphemeralSequential }

func (m Mode) op() int32 {
	if m == Container {
		return jute.OpCreateContainer
	}
	return jute.OpCreate2
}

// Create creates a znode and returns its path, which differs from path for the
// sequential modes, and its Stat. Without acl it gets the session's. An error that
// matches ErrUnknown means that the znode may be there: CreateProtected knows.
func (s *Session) Create(ctx context.Context, path string, data []byte, mode Mode, acl ...ACL) (string, Stat, error) {
	var created string
	var st Stat
	r := &request{op: mode.op(), path: path, write: true}
	if err := validateCreate(path, mode); err != nil {
		return "", st, r.fail(err)
	}
	if len(acl) == 0 {
		acl = s.cfg.ACL
	}
	r.frame = newFrame(r.op, len(path)+len(data)+128, func(e *jute.Encoder) {
		encodeCreate(e, full(s.cfg.Chroot, path), data, acl, mode)
	})
	r.decode = func(d *jute.Decoder) error {
		created = strip(s.cfg.Chroot, d.String())
		st.decode(d)
		return nil
	}
	if _, err := s.exchange(ctx, r); err != nil {
		return "", Stat{}, err
	}
	return created, st, nil
}

func encodeCreate(e *jute.Encoder, path string, data []byte, acl []ACL, mode Mode) {
	if data == nil {
		data = []byte{} // no data and empty data are different znodes to other clients
	}
	e.String(path)
	e.Buffer(data)
	encodeACLs(e, acl)
	e.Int32(int32(mode))
}

// validateCreate also takes the path of a sequential znode whose name is the
// number alone, "/dir/".
func validateCreate(path string, mode Mode) error {
	if mode < Persistent || mode > Container {
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
	r := &request{op: jute.OpSetData, path: path, write: true}
	if err := ValidatePath(path); err != nil {
		return st, r.fail(err)
	}
	r.frame = newFrame(r.op, len(path)+len(data)+128, func(e *jute.Encoder) {
		encodeSet(e, full(s.cfg.Chroot, path), data, version)
	})
	r.decode = func(d *jute.Decoder) error {
		st.decode(d)
		return nil
	}
	_, err := s.exchange(ctx, r)
	return st, err
}

func encodeSet(e *jute.Encoder, path string, data []byte, version int32) {
	if data == nil {
		data = []byte{}
	}
	e.String(path)
	e.Buffer(data)
	e.Int32(version)
}

// Delete deletes a znode that has no children if it is at version; -1 is any.
func (s *Session) Delete(ctx context.Context, path string, version int32) error {
	r := &request{op: jute.OpDelete, path: path, write: true}
	if err := ValidatePath(path); err != nil {
		return r.fail(err)
	}
	r.frame = newFrame(r.op, len(path)+128, func(e *jute.Encoder) {
		e.String(full(s.cfg.Chroot, path))
		e.Int32(version)
	})
	_, err := s.exchange(ctx, r)
	return err
}

// SetACL replaces the ACL of a znode if it is at aversion; -1 is any.
func (s *Session) SetACL(ctx context.Context, path string, acl []ACL, aversion int32) (Stat, error) {
	var st Stat
	r := &request{op: jute.OpSetACL, path: path, write: true}
	if err := ValidatePath(path); err != nil {
		return st, r.fail(err)
	}
	r.frame = newFrame(r.op, len(path)+256, func(e *jute.Encoder) {
		e.String(full(s.cfg.Chroot, path))
		encodeACLs(e, acl)
		e.Int32(aversion)
	})
	r.decode = func(d *jute.Decoder) error {
		st.decode(d)
		return nil
	}
	_, err := s.exchange(ctx, r)
	return st, err
}
