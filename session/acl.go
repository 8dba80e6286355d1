package session

import (
	"context"
	"crypto/sha1" //nolint:gosec // the scheme digest is defined with it
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

const permLetters = "rwcda" // by bit

// ParseACL reads an ACL in zkCli's form, "scheme:id:cdrwa"; the id may contain colons,
// as in the scheme digest. The errors never show a digest, because it may be a
// password.
func ParseACL(s string) (ACL, error) {
	a, err := parseACL(s)
	if err != nil {
		if rest, ok := strings.CutPrefix(s, "digest:"); ok {
			user, _, _ := strings.Cut(rest, ":")
			s = "digest:" + user + ":..."
		}
		return ACL{}, fmt.Errorf("acl %q: %w", s, err)
	}
	return a, nil
}

func parseACL(s string) (ACL, error) {
	first, last := strings.IndexByte(s, ':'), strings.LastIndexByte(s, ':')
	if first <= 0 || first == last {
		return ACL{}, errors.New("want scheme:id:permissions, such as world:anyone:r")
	}
	a := ACL{Scheme: s[:first], ID: s[first+1 : last]}
	if a.Scheme == "digest" && !isDigest(a.ID) {
		return ACL{}, errNoDigest
	}
	for _, c := range s[last+1:] {
		bit := strings.IndexRune(permLetters, c)
		if bit < 0 {
			return ACL{}, fmt.Errorf("permission %q is not one of c, d, r, w, a", c)
		}
		a.Perms |= 1 << bit
	}
	if a.Perms == 0 {
		return ACL{}, errors.New("no permissions")
	}
	if a.Scheme == "world" && a.ID != "anyone" {
		return ACL{}, errors.New("the only id of scheme world is anyone")
	}
	return a, nil
}

// errNoDigest is about an id that matches nobody: a server compares hashes.
var errNoDigest = errors.New("the id of scheme digest is user:HASH, and HASH is not the password; " +
	"`printf %s USER:PASSWORD | openssl dgst -sha1 -binary | base64` prints it, and auth::cdrwa is the identity of the session itself")

// isDigest reports whether an id is user:HASH, with the SHA-1 of user:password in base64.
func isDigest(id string) bool {
	user, hash, _ := strings.Cut(id, ":")
	sum, err := base64.StdEncoding.Strict().DecodeString(hash)
	return user != "" && err == nil && len(sum) == sha1.Size
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

// acl returns the ACL of created znodes.
func (s *Session) acl() []ACL {
	switch {
	case len(s.cfg.ACL) > 0:
		return s.cfg.ACL
	case len(s.cfg.Auth) == 0 && s.cfg.SASL == nil && !s.cert.Load():
		return OpenACL()
	}
	return []ACL{
		{Perms: PermRead, Scheme: "world", ID: "anyone"},
		{Perms: PermAll, Scheme: "auth", ID: ""},
	}
}

// Identity is an identity that a server has accepted on a connection: a scheme and our
// id in it. For a digest the server returns only the user.
type Identity struct{ Scheme, ID string }

func (i Identity) String() string { return i.Scheme + ":" + i.ID }

// WhoAmI asks the server for our identities. Before 3.7 servers do not support that:
// the error matches ErrUnimplemented.
func (s *Session) WhoAmI(ctx context.Context) ([]Identity, error) {
	var ids []Identity
	_, err := s.exchange(ctx, &request{op: jute.OpWhoAmI, frame: newFrame(jute.OpWhoAmI), result: []any{&ids}})
	return ids, err
}

// Permissions returns the permissions of these identities under an ACL, as a sum of Perm constants.
// It compares hashes of digests with those of the session's own credentials, where the
// server shows them.
func (s *Session) Permissions(acl []ACL, ids []Identity) int32 {
	var perms int32
	for _, a := range acl {
		if a.Scheme == "world" || slices.ContainsFunc(ids, func(i Identity) bool { return s.matches(a, i) }) {
			perms |= a.Perms
		}
	}
	if slices.ContainsFunc(ids, func(i Identity) bool { return i.Scheme == "super" }) {
		perms = PermAll
	}
	return perms
}

func (s *Session) matches(a ACL, i Identity) bool {
	switch {
	case a.Scheme != i.Scheme:
		return false
	case a.Scheme == "digest":
		user, hash, _ := strings.Cut(a.ID, ":")
		return user == i.ID && (hash == hiddenHash || slices.ContainsFunc(s.cfg.Auth, func(c Auth) bool { return c.Scheme == a.Scheme && jute.Digest(string(c.Data)) == a.ID }))
	case a.Scheme == "ip":
		net, err := netip.ParsePrefix(a.ID)
		addr, aerr := netip.ParseAddr(i.ID)
		return a.ID == i.ID || err == nil && aerr == nil && net.Contains(addr)
	}
	return a.ID == i.ID
}

// hiddenHash stands for a digest whose znode we may not administer.
const hiddenHash = "x"
