package memzk

import (
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/jute"
)

// record is what a transaction that is being prepared will make of a znode, as
// far as later steps of the same transaction ask for it.
type record struct {
	exists   bool
	acl      []jute.ACL
	version  int32
	aversion int32
	cversion int32
	children int
	owner    int64
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
	path = watchPath(path)
	if r := p.records[path]; r != nil {
		return r
	}
	r := &record{}
	if n := p.s.primary.tree.get(path); n != nil {
		*r = record{true, n.acl, n.version, n.aversion, n.cversion, len(n.children), n.owner}
	}
	p.records[path] = r
	return r
}

// existing is lookup for a znode that must exist.
func (p *preparer) existing(path string) (*record, error) {
	r := p.lookup(path)
	if !r.exists {
		return nil, Error(jute.ErrCodeNoNode)
	}
	return r, nil
}

// owner returns what the new znode's ephemeralOwner will be.
func (p *preparer) owner(op int32, r *createRequest) (int64, error) {
	ttlMode := r.flags == jute.FlagPersistentTTL || r.flags == jute.FlagPersistentSequentialTTL
	switch {
	case r.flags < 0 || r.flags > jute.FlagPersistentSequentialTTL:
		return 0, Error(jute.ErrCodeBadArguments)
	case ttlMode && p.s.opts.NoExtendedTypes:
		return 0, Error(jute.ErrCodeUnimplemented)
	case ttlMode && (r.ttl <= 0 || r.ttl > maxTTL), !ttlMode && r.ttl >= 0:
		return 0, Error(jute.ErrCodeBadArguments)
	case op == jute.OpCreateTTL && !ttlMode: // This crashes a real server.
		return 0, Error(jute.ErrCodeBadArguments)
	}
	switch {
	case op == jute.OpCreateContainer:
		return ownerContainer, nil
	case op == jute.OpCreateTTL:
		return ownerTTLMask | r.ttl, nil
	case r.flags == jute.FlagEphemeral || r.flags == jute.FlagEphemeralSequential:
		return p.session, nil
	}
	return 0, nil
}

func (p *preparer) create(op int32, r createRequest) error {
	owner, err := p.owner(op, &r)
	if err != nil {
		return err
	}
	parentPath, ok := parentOf(r.path)
	if !ok || hasNull(r.path) {
		return Error(jute.ErrCodeBadArguments)
	}
	acl, err := fixACL(r.acl, p.ids)
	if err != nil {
		return err
	}
	parent, err := p.existing(parentPath)
	if err != nil {
		return err
	}
	if err = checkACL(parent.acl, jute.PermCreate, p.ids); err != nil {
		return err
	}
	path := r.path
	if r.sequential() {
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
	parent.children++
	*child = record{exists: true, acl: acl, owner: owner}
	p.steps = append(p.steps, step{op: jute.OpCreate, path: path, data: r.data, acl: acl, owner: owner, cversion: parent.cversion})
	return nil
}

func (p *preparer) delete(path string, version int32) error {
	parentPath, ok := parentOf(path)
	if !ok || hasNull(path) || isSpecial(path) {
		return Error(jute.ErrCodeBadArguments)
	}
	parent, err := p.existing(parentPath)
	if err != nil {
		return err
	}
	if err = checkACL(parent.acl, jute.PermDelete, p.ids); err != nil {
		return err
	}
	n, err := p.existing(path)
	if err != nil {
		return err
	}
	if err := checkVersion(n.version, version); err != nil {
		return err
	}
	if n.children > 0 {
		return Error(jute.ErrCodeNotEmpty)
	}
	parent.children--
	*n = record{}
	p.steps = append(p.steps, step{op: jute.OpDelete, path: path})
	return nil
}

func (p *preparer) setData(path string, data []byte, version int32) error {
	n, err := p.permitted(path, jute.PermWrite)
	if err != nil {
		return err
	}
	if err := checkVersion(n.version, version); err != nil {
		return err
	}
	n.version++
	p.steps = append(p.steps, step{op: jute.OpSetData, path: path, data: data, version: n.version})
	return nil
}

func (p *preparer) setACL(path string, acls []jute.ACL, version int32) error {
	if err := validatePath(path); err != nil {
		return err
	}
	acl, err := fixACL(acls, p.ids)
	if err != nil {
		return err
	}
	n, err := p.permitted(path, jute.PermAdmin)
	if err != nil {
		return err
	}
	if err := checkVersion(n.aversion, version); err != nil {
		return err
	}
	n.aversion++
	n.acl = acl
	p.steps = append(p.steps, step{op: jute.OpSetACL, path: path, acl: acl, version: n.aversion})
	return nil
}

func (p *preparer) check(path string, version int32) error {
	n, err := p.permitted(path, jute.PermRead)
	if err != nil {
		return err
	}
	if err := checkVersion(n.version, version); err != nil {
		return err
	}
	p.steps = append(p.steps, step{op: jute.OpCheck, path: path})
	return nil
}

// permitted returns the record of a valid path that exists and gives perm.
func (p *preparer) permitted(path string, perm int32) (*record, error) {
	if err := validatePath(path); err != nil {
		return nil, err
	}
	n, err := p.existing(path)
	if err != nil {
		return nil, err
	}
	return n, checkACL(n.acl, perm, p.ids)
}

func checkVersion(current, want int32) error {
	if want != -1 && want != current {
		return Error(jute.ErrCodeBadVersion)
	}
	return nil
}

func hasNull(path string) bool { return slices.Contains([]byte(path), 0) }

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
	if jute.IsCreate(op) {
		r := decodeCreate(op, d)
		if d.Err() != nil {
			return Error(jute.ErrCodeMarshallingError)
		}
		return p.create(op, r)
	}
	r := decodeChange(op, d)
	switch {
	case d.Err() != nil:
		return Error(jute.ErrCodeMarshallingError)
	case op == jute.OpDelete:
		return p.delete(r.path, r.version)
	case op == jute.OpSetData:
		return p.setData(r.path, r.data, r.version)
	case op == jute.OpSetACL:
		return p.setACL(r.path, r.acl, r.version)
	case op == jute.OpCheck:
		return p.check(r.path, r.version)
	}
	return Error(jute.ErrCodeUnimplemented)
}

// change is the body of delete, setData, setACL and check.
type change struct {
	path    string
	data    []byte
	acl     []jute.ACL
	version int32
}

func decodeChange(op int32, d *jute.Decoder) change {
	r := change{path: d.String()}
	switch op {
	case jute.OpSetData:
		r.data = d.Buffer()
	case jute.OpSetACL:
		_ = d.Get(&r.acl) // the caller looks at Err
	}
	r.version = d.Int32()
	return r
}
