package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/internal/jute"
)

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
	var args []any
	for i := range ops {
		err := ValidatePath(ops[i].path)
		if jute.IsCreate(ops[i].op) {
			err = validateCreate(ops[i].path, ops[i].mode)
		}
		if err != nil {
			return nil, r.fail(&MultiError{Index: i, Path: ops[i].path, Err: err})
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
		if st := &results[i].Stat; jute.IsCreate(ops[i].op) && st.Czxid == 0 {
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
				failed = &MultiError{Index: i, Path: ops[i].path, Err: codeError(code)}
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
