package memzk

import "github.com/zkagent/zkagent/internal/jute"

// createRequest is the body of create, create2, createContainer and createTTL.
type createRequest struct {
	path  string
	data  []byte
	acl   []jute.ACL
	flags int32
	ttl   int64
}

func decodeCreate(op int32, d *jute.Decoder) createRequest {
	r := createRequest{ttl: -1}
	_ = d.Get(&r.path, &r.data, &r.acl, &r.flags) // the caller looks at Err
	if op == jute.OpCreateTTL {
		r.ttl = d.Int64()
	}
	return r
}

// sequential reports whether the server completes the path with a number.
func (r *createRequest) sequential() bool {
	return r.flags == jute.FlagSequential || r.flags == jute.FlagEphemeralSequential || r.flags == jute.FlagPersistentSequentialTTL
}

// readable reports whether a server can read this create as part of a multi. Before
// 3.9 it looks only at those before the first failure.
func (p *preparer) readable(op int32, r *createRequest, failed bool) bool {
	recent := p.s.opts.since("3.9.3")
	switch ttl := r.flags == jute.FlagPersistentTTL || r.flags == jute.FlagPersistentSequentialTTL; {
	case failed && !recent:
		return true
	case ttl:
		return op == jute.OpCreateTTL
	}
	return !recent || r.flags >= 0 && r.flags <= jute.FlagPersistentSequentialTTL
}

// createInMulti prepares a create inside a multi. There the flags decide what is
// made; the operation decides only what is answered, from 3.9 on.
func (p *preparer) createInMulti(op int32, r createRequest) (int32, error) {
	switch r.flags {
	case jute.FlagContainer:
		return jute.OpCreateContainer, p.create(jute.OpCreateContainer, r)
	case jute.FlagPersistentTTL, jute.FlagPersistentSequentialTTL:
		return op, p.create(op, r)
	}
	r.ttl = -1
	if !p.s.opts.since("3.9.3") || op == jute.OpCreateTTL {
		op = jute.OpCreate
	}
	return op, p.create(jute.OpCreate, r)
}

func (p *preparer) one(op int32, d *jute.Decoder) error {
	prepare := func() error { return Error(jute.ErrCodeUnimplemented) }
	switch op {
	case jute.OpCreate, jute.OpCreate2, jute.OpCreateContainer, jute.OpCreateTTL:
		r := decodeCreate(op, d)
		prepare = func() error { return p.create(op, r) }
	case jute.OpDelete:
		path, version := d.String(), d.Int32()
		prepare = func() error { return p.delete(path, version) }
	case jute.OpSetData:
		path, data, version := d.String(), d.Buffer(), d.Int32()
		prepare = func() error { return p.setData(path, data, version) }
	case jute.OpSetACL:
		var acls []jute.ACL
		path, _, version := d.String(), d.Get(&acls), d.Int32()
		prepare = func() error { return p.setACL(path, acls, version) }
	case jute.OpCheck:
		path, version := d.String(), d.Int32()
		prepare = func() error { return p.check(path, version) }
	}
	if d.Err() != nil {
		return Error(jute.ErrCodeMarshallingError)
	}
	return prepare()
}
