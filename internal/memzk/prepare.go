package memzk

import (
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/jute"
)

// request is the body of a request that changes a znode; each operation has some of the
// fields.
type request struct {
	path    string
	data    []byte
	acl     []jute.ACL
	flags   int32
	ttl     int64 // -1 unless the operation is createTTL
	version int32
}

func decodeRequest(op int32, d *jute.Decoder) (request, error) {
	r := request{ttl: -1}
	fields := []any{&r.path}
	switch {
	case jute.IsCreate(op):
		fields = append(fields, &r.data, &r.acl, &r.flags)
		if op == jute.OpCreateTTL {
			fields = append(fields, &r.ttl)
		}
		return r, d.Get(fields...)
	case op == jute.OpSetData:
		fields = append(fields, &r.data)
	case op == jute.OpSetACL:
		fields = append(fields, &r.acl)
	}
	return r, d.Get(append(fields, &r.version)...)
}

// hasTTL reports whether the flags of a create ask for a TTL.
func (r *request) hasTTL() bool {
	return r.flags == jute.FlagPersistentTTL || r.flags == jute.FlagPersistentSequentialTTL
}

// record is a znode as a transaction that is being prepared leaves it, for later steps of
// the same transaction.
type record struct {
	node // without its children

	exists bool
	count  int // of the children
}

// preparer turns requests into the steps of one transaction. It changes
// nothing: the tree is touched only when all steps are known to succeed.
type preparer struct {
	s       *Server
	session int64
	ids     []identity
	records map[string]*record
	steps   []step
}

func (s *Server) preparer(session int64, ids []identity) *preparer {
	return &preparer{s: s, session: session, ids: ids, records: map[string]*record{}}
}

// lookup returns the record of path, whether the znode exists or not.
func (p *preparer) lookup(path string) *record {
	if r := p.records[path]; r != nil {
		return r
	}
	r := &record{}
	if n := p.s.primary.tree.get(path); n != nil {
		*r = record{*n, true, len(n.children)}
	}
	p.records[path] = r
	return r
}

// permitted is lookup for a znode that must exist and give perm.
func (p *preparer) permitted(path string, perm int32) (*record, error) {
	r := p.lookup(path)
	if !r.exists {
		return nil, Error(jute.ErrCodeNoNode)
	}
	return r, checkACL(r.acl, perm, p.ids)
}

func (p *preparer) prepare(op int32, r request) error {
	switch {
	case jute.IsCreate(op):
		return p.create(op, r)
	case op == jute.OpDelete:
		return p.delete(r.path, r.version)
	}
	return p.change(op, r)
}

// owner returns what the new znode's ephemeralOwner will be.
func (p *preparer) owner(op int32, r *request) (int64, error) {
	switch ttl := r.hasTTL(); {
	case r.flags < 0 || r.flags > jute.FlagPersistentSequentialTTL:
		return 0, Error(jute.ErrCodeBadArguments)
	case ttl && p.s.opts.NoExtendedTypes:
		return 0, Error(jute.ErrCodeUnimplemented)
	case ttl && (r.ttl <= 0 || r.ttl > maxTTL), !ttl && r.ttl >= 0:
		return 0, Error(jute.ErrCodeBadArguments)
	case op == jute.OpCreateTTL && !ttl: // This crashes a real server.
		return 0, Error(jute.ErrCodeBadArguments)
	case op == jute.OpCreateContainer:
		return ownerContainer, nil
	case op == jute.OpCreateTTL:
		return ownerTTLMask | r.ttl, nil
	case r.flags == jute.FlagEphemeral || r.flags == jute.FlagEphemeralSequential:
		return p.session, nil
	}
	return 0, nil
}

func (p *preparer) create(op int32, r request) error {
	owner, err := p.owner(op, &r)
	if err != nil {
		return err
	}
	if isBad(r.path) {
		return Error(jute.ErrCodeBadArguments)
	}
	acl, err := fixACL(r.acl, p.ids)
	if err != nil {
		return err
	}
	above, _ := splitPath(r.path)
	parent, err := p.permitted(above, jute.PermCreate)
	if err != nil {
		return err
	}
	path := r.path
	if r.flags == jute.FlagSequential || r.flags == jute.FlagEphemeralSequential || r.flags == jute.FlagPersistentSequentialTTL {
		path += fmt.Sprintf("%010d", parent.cversion)
	}
	if err = validatePath(path); err != nil {
		return err
	}
	child := p.lookup(path)
	if child.exists {
		return Error(jute.ErrCodeNodeExists)
	}
	if isEphemeral(parent.owner) {
		return Error(jute.ErrCodeNoChildrenForEphemerals)
	}
	parent.cversion++
	parent.count++
	*child = record{exists: true, node: node{acl: acl, owner: owner}}
	p.steps = append(p.steps, step{op: jute.OpCreate, path: path, data: r.data, acl: acl, owner: owner, cversion: parent.cversion})
	return nil
}

func (p *preparer) delete(path string, version int32) error {
	if isBad(path) || slices.Contains([]string{rootPath, zookeeperPath, quotaPath, configPath}, path) {
		return Error(jute.ErrCodeBadArguments)
	}
	above, _ := splitPath(path)
	parent, err := p.permitted(above, jute.PermDelete)
	if err != nil {
		return err
	}
	switch n := p.lookup(path); {
	case !n.exists:
		return Error(jute.ErrCodeNoNode)
	case version != -1 && version != n.version:
		return Error(jute.ErrCodeBadVersion)
	case n.count > 0:
		return Error(jute.ErrCodeNotEmpty)
	default:
		*n = record{}
	}
	parent.count--
	p.steps = append(p.steps, step{op: jute.OpDelete, path: path})
	return nil
}

func (p *preparer) change(op int32, r request) error {
	if err := validatePath(r.path); err != nil {
		return err
	}
	perm := jute.PermRead
	switch op {
	case jute.OpSetData:
		perm = jute.PermWrite
	case jute.OpSetACL:
		perm = jute.PermAdmin
		var err error
		if r.acl, err = fixACL(r.acl, p.ids); err != nil {
			return err
		}
	}
	n, err := p.permitted(r.path, perm)
	if err != nil {
		return err
	}
	version := &n.version
	if op == jute.OpSetACL {
		version = &n.aversion
	}
	if r.version != -1 && r.version != *version {
		return Error(jute.ErrCodeBadVersion)
	}
	if op != jute.OpCheck {
		*version++
	}
	if op == jute.OpSetACL {
		n.acl = r.acl
	}
	p.steps = append(p.steps, step{op: op, path: r.path, data: r.data, acl: r.acl, version: *version})
	return nil
}

// readable reports whether a server can read this request as part of a multi. Before
// 3.9 it looks only at the creates before the first failure.
func (p *preparer) readable(op int32, r *request, failed bool) bool {
	recent := p.s.opts.since("3.9.3")
	switch {
	case !jute.IsCreate(op), failed && !recent:
		return true
	case r.hasTTL():
		return op == jute.OpCreateTTL
	}
	return !recent || r.flags >= 0 && r.flags <= jute.FlagPersistentSequentialTTL
}

// prepareInMulti is prepare inside a multi. There the flags of a create decide what is
// made; the operation decides only what is answered, from 3.9 on: it is returned.
func (p *preparer) prepareInMulti(op int32, r request) (int32, error) {
	switch {
	case !jute.IsCreate(op), r.hasTTL():
		return op, p.prepare(op, r)
	case r.flags == jute.FlagContainer:
		return jute.OpCreateContainer, p.create(jute.OpCreateContainer, r)
	}
	r.ttl = -1
	if !p.s.opts.since("3.9.3") || op == jute.OpCreateTTL {
		op = jute.OpCreate
	}
	return op, p.create(jute.OpCreate, r)
}
