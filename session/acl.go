package session

import (
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// ACL grants permissions on a znode to one identity.
type ACL struct {
	Perms  int32  // a sum of Perm constants
	Scheme string // "world", "auth", "digest", "ip", "x509", ...
	ID     string // who, in the words of the scheme
}

// Permissions of an ACL.
const (
	PermRead   int32 = 1
	PermWrite  int32 = 2
	PermCreate int32 = 4
	PermDelete int32 = 8
	PermAdmin  int32 = 16
	PermAll    int32 = 31
)

func encodeACLs(e *jute.Encoder, acl []ACL) {
	e.Count(len(acl))
	for _, a := range acl {
		(*jute.ACL)(&a).Encode(e)
	}
}

func decodeACLs(d *jute.Decoder) []ACL {
	var acl []ACL
	for _, a := range jute.DecodeACLs(d) {
		acl = append(acl, ACL(a))
	}
	return acl
}

const permLetters = "rwcda" // by bit

// ParseACL reads an ACL in zkCli's form, "scheme:id:cdrwa"; the id may contain
// colons, as those of digest do.
func ParseACL(s string) (ACL, error) {
	first, last := strings.IndexByte(s, ':'), strings.LastIndexByte(s, ':')
	if first <= 0 || first == last {
		return ACL{}, fmt.Errorf("acl %q: want scheme:id:permissions, such as world:anyone:r", s)
	}
	a := ACL{Scheme: s[:first], ID: s[first+1 : last]}
	for _, c := range s[last+1:] {
		bit := strings.IndexRune(permLetters, c)
		if bit < 0 {
			return ACL{}, fmt.Errorf("acl %q: permission %q is not one of c, d, r, w, a", s, c)
		}
		a.Perms |= 1 << bit
	}
	if a.Perms == 0 {
		return ACL{}, fmt.Errorf("acl %q: no permissions", s)
	}
	if a.Scheme == "world" && a.ID != "anyone" {
		return ACL{}, fmt.Errorf("acl %q: the only id of scheme world is anyone", s)
	}
	return a, nil
}

// FormatACL returns a in the form that ParseACL reads.
func FormatACL(a ACL) string { return a.Scheme + ":" + a.ID + ":" + FormatPermissions(a.Perms) }

// FormatPermissions returns the letters of permissions, as in "cdrwa".
func FormatPermissions(perms int32) string {
	var b strings.Builder
	for _, c := range "cdrwa" {
		if perms&(1<<strings.IndexRune(permLetters, c)) != 0 {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// OpenACL lets everybody do everything.
func OpenACL() []ACL { return []ACL{{Perms: PermAll, Scheme: "world", ID: "anyone"}} }

func defaultACL(auth bool) []ACL {
	if !auth {
		return OpenACL()
	}
	return []ACL{
		{Perms: PermRead, Scheme: "world", ID: "anyone"},
		{Perms: PermAll, Scheme: "auth", ID: ""},
	}
}
