package memzk

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

type identity struct{ scheme, id string }

const superScheme = "super"

// allowed reports whether one of ids has one of perms.
func allowed(acl []jute.ACL, perms int32, ids []identity) bool {
	if len(acl) == 0 || slices.ContainsFunc(ids, func(i identity) bool { return i.scheme == superScheme }) {
		return true
	}
	for _, a := range acl {
		if a.Perms&perms == 0 {
			continue
		}
		if a.Scheme == "world" && a.ID == "anyone" {
			return true
		}
		for _, i := range ids {
			if i.scheme == a.Scheme && matches(a.Scheme, i.id, a.ID) {
				return true
			}
		}
	}
	return false
}

func checkACL(acl []jute.ACL, perms int32, ids []identity) error {
	if allowed(acl, perms, ids) {
		return nil
	}
	return Error(jute.ErrCodeNoAuth)
}

func matches(scheme, id, want string) bool {
	if scheme != "ip" {
		return id == want
	}
	prefix, err := ipPrefix(want)
	addr, err2 := netip.ParseAddr(id)
	return err == nil && err2 == nil && prefix.Contains(addr)
}

// ipPrefix reads "10.0.0.1" or "10.0.0.0/8".
func ipPrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// fixACL checks what a client wants to be the ACL and puts its own identities
// in the place of the scheme "auth".
func fixACL(acls []jute.ACL, ids []identity) ([]jute.ACL, error) {
	var fixed []jute.ACL
	for i, a := range acls {
		switch {
		case slices.Contains(acls[:i], a):
		case a.Scheme == "world" && a.ID == "anyone":
			fixed = append(fixed, a)
		case a.Scheme == "auth":
			n := len(fixed)
			for _, i := range ids {
				if i.scheme == "digest" || i.scheme == "sasl" || i.scheme == superScheme {
					fixed = append(fixed, jute.ACL{Perms: a.Perms, Scheme: i.scheme, ID: i.id})
				}
			}
			if len(fixed) == n {
				return nil, Error(jute.ErrCodeInvalidACL)
			}
		case validID(a.Scheme, a.ID):
			fixed = append(fixed, a)
		default:
			return nil, Error(jute.ErrCodeInvalidACL)
		}
	}
	if len(fixed) == 0 {
		return nil, Error(jute.ErrCodeInvalidACL)
	}
	return fixed, nil
}

func validID(scheme, id string) bool {
	switch scheme {
	case "digest":
		return strings.Count(strings.TrimRight(id, ":"), ":") == 1
	case "sasl":
		return id != ""
	case "ip":
		_, err := ipPrefix(id)
		return err == nil
	}
	return false
}

// maskDigests hides the hashes from who may not administer the znode.
func maskDigests(acls []jute.ACL) []jute.ACL {
	masked := slices.Clone(acls)
	for i := range masked {
		if masked[i].Scheme == "digest" {
			user, _, _ := strings.Cut(masked[i].ID, ":")
			masked[i].ID = user + ":x"
		}
	}
	return masked
}
