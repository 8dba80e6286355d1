package jute

// Stat is what ZooKeeper knows about a znode besides its data. Zxids count the
// server's transactions; times are milliseconds since 1970.
type Stat struct {
	Czxid          int64 // zxid of the creation
	Mzxid          int64 // zxid of the last change of the data
	Ctime          int64 // time of the creation
	Mtime          int64 // time of the last change of the data
	Version        int32 // changes of the data
	Cversion       int32 // creations and deletions of children
	Aversion       int32 // changes of the ACL
	EphemeralOwner int64 // session that owns the znode; 0 if it is not ephemeral
	DataLength     int32 // bytes of data
	NumChildren    int32 // direct children
	Pzxid          int64 // zxid of the last creation or deletion of a child
}

// StatSize is the number of bytes that an encoded Stat takes.
const StatSize = 68

// Encode appends s to e.
func (s *Stat) Encode(e *Encoder) {
	e.Int64(s.Czxid)
	e.Int64(s.Mzxid)
	e.Int64(s.Ctime)
	e.Int64(s.Mtime)
	e.Int32(s.Version)
	e.Int32(s.Cversion)
	e.Int32(s.Aversion)
	e.Int64(s.EphemeralOwner)
	e.Int32(s.DataLength)
	e.Int32(s.NumChildren)
	e.Int64(s.Pzxid)
}

// Decode reads s from d; the error is d's.
func (s *Stat) Decode(d *Decoder) {
	s.Czxid = d.Int64()
	s.Mzxid = d.Int64()
	s.Ctime = d.Int64()
	s.Mtime = d.Int64()
	s.Version = d.Int32()
	s.Cversion = d.Int32()
	s.Aversion = d.Int32()
	s.EphemeralOwner = d.Int64()
	s.DataLength = d.Int32()
	s.NumChildren = d.Int32()
	s.Pzxid = d.Int64()
}

// ACL grants permissions on one znode to one identity.
type ACL struct {
	Perms  int32  // a sum of Perm constants
	Scheme string // "world", "auth", "digest", "ip", "x509", ...
	ID     string // who, in the words of the scheme
}

// Encode appends a to e.
func (a *ACL) Encode(e *Encoder) {
	e.Int32(a.Perms)
	e.String(a.Scheme)
	e.String(a.ID)
}

// Decode reads a from d; the error is d's.
func (a *ACL) Decode(d *Decoder) {
	a.Perms = d.Int32()
	a.Scheme = d.String()
	a.ID = d.String()
}

// EncodeACLs appends a vector of ACLs to e.
func EncodeACLs(e *Encoder, acls []ACL) {
	e.Count(len(acls))
	for i := range acls {
		acls[i].Encode(e)
	}
}

// DecodeACLs reads a vector of ACLs from d; nil when it is empty or wrong.
func DecodeACLs(d *Decoder) []ACL {
	n := d.Count(12)
	if n == 0 {
		return nil
	}
	acls := make([]ACL, n)
	for i := range acls {
		acls[i].Decode(d)
	}
	if d.Err() != nil {
		return nil
	}
	return acls
}
