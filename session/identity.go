package session

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

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
