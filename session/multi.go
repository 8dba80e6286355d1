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
	// Stat is that of a set or create. Servers do not return the Stat of most creates.
	// Then the zxids are those of the multi, the owner is this session if the mode was
	// ephemeral, and the times are zero.
	Stat Stat
}

// MultiError says which operation made a Multi fail. No operation was applied.
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
	size := 0
	for i := range ops {
		size += len(ops[i].path) + len(ops[i].data) + len(s.cfg.Chroot) + 128
		err := ValidatePath(ops[i].path)
		if isCreate(ops[i].op) {
			err = validateCreate(ops[i].path, ops[i].mode)
		}
		if err != nil {
			return nil, r.fail(&MultiError{Index: i, Path: ops[i].path, Err: err})
		}
	}
	r.frame = newFrame(r.op, size, func(e *jute.Encoder) {
		for i := range ops {
			s.encodeOp(e, &ops[i])
		}
		(&jute.MultiHeader{Type: -1, Done: true, Err: -1}).Encode(e)
	})
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
		if st := &results[i].Stat; isCreate(ops[i].op) && st.Czxid == 0 {
			st.Czxid, st.Mzxid, st.Pzxid, st.DataLength = r.zxid, r.zxid, r.zxid, int32(len(ops[i].data))
			if ops[i].mode.Ephemeral() {
				st.EphemeralOwner = s.ID()
			}
		}
	}
	return results, nil
}

func (s *Session) encodeOp(e *jute.Encoder, o *Op) {
	(&jute.MultiHeader{Type: o.op, Err: -1}).Encode(e)
	path := full(s.cfg.Chroot, o.path)
	switch {
	case isCreate(o.op):
		acl := o.acl
		if len(acl) == 0 {
			acl = s.cfg.ACL
		}
		encodeCreate(e, path, o.data, acl, o.mode)
	case o.op == jute.OpSetData:
		encodeSet(e, path, o.data, o.version)
	default: // delete, check
		e.String(path)
		e.Int32(o.version)
	}
}

// decodeResults reads the results of a multi. A failed multi has an error for every
// operation: 0 before the operation that failed, "rolled back" after it.
func (s *Session) decodeResults(d *jute.Decoder, ops []Op) ([]OpResult, error) {
	results := make([]OpResult, len(ops))
	var failed *MultiError
	for i := range ops {
		var h jute.MultiHeader
		h.Decode(d)
		if h.Done || d.Err() != nil {
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
			results[i].Stat.decode(d)
		case jute.OpSetData:
			results[i].Stat.decode(d)
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
