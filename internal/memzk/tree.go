package memzk

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// Owners that are no sessions: they mark the kind of a znode.
const (
	ownerContainer int64 = -1 << 63
	ownerTTLMask   int64 = -1 << 56 // 0xff in the first byte; the rest is the TTL in milliseconds
	maxTTL         int64 = 1<<40 - 1
)

// node is one znode. Its data and ACL are never changed in place, so that
// copies of a tree share them.
type node struct {
	data     []byte // nil and empty differ
	acl      []jute.ACL
	czxid    int64
	mzxid    int64
	pzxid    int64
	ctime    int64 // milliseconds
	mtime    int64
	version  int32
	cversion int32 // counts creations of children alone
	aversion int32
	owner    int64 // session, ownerContainer, TTL, or 0
	children map[string]struct{}
}

// stat returns what clients see: their cversion counts deletions too, and
// containers and TTL znodes look like persistent ones.
func (n *node) stat() jute.Stat {
	owner := n.owner
	if !isEphemeral(owner) {
		owner = 0
	}
	children, size := int32(len(n.children)), int32(len(n.data)) //nolint:gosec // Both fit a frame.
	return jute.Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: n.pzxid, Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version, Cversion: n.cversion*2 - children, Aversion: n.aversion,
		EphemeralOwner: owner, DataLength: size, NumChildren: children,
	}
}

func (n *node) childNames() []string { return slices.Sorted(maps.Keys(n.children)) }

// isEphemeral reports whether a session owns the znode.
func isEphemeral(owner int64) bool {
	return owner != 0 && owner != ownerContainer && !isTTL(owner)
}

func isTTL(owner int64) bool { return owner != ownerContainer && owner&ownerTTLMask == ownerTTLMask }

type tree struct {
	zxid       int64 // of the last transaction applied
	nodes      map[string]*node
	ephemerals map[int64]map[string]struct{} // paths by session
	reapable   map[string]struct{}           // containers and TTL znodes
}

// newTree returns the tree that a fresh server has.
func newTree() *tree {
	t := &tree{nodes: map[string]*node{}, ephemerals: map[int64]map[string]struct{}{}, reapable: map[string]struct{}{}}
	readable := []jute.ACL{{Perms: jute.PermRead, Scheme: "world", ID: "anyone"}}
	t.nodes[rootPath] = &node{data: []byte{}, acl: openACL, children: map[string]struct{}{"zookeeper": {}}}
	t.nodes[zookeeperPath] = &node{data: []byte{}, acl: openACL, children: map[string]struct{}{"quota": {}, "config": {}}}
	t.nodes[quotaPath] = &node{data: []byte{}, acl: openACL}
	t.nodes[configPath] = &node{data: []byte{}, acl: readable, aversion: -1}
	return t
}

// get returns the znode, or nil. The empty path is the root, as on a server.
func (t *tree) get(path string) *node { return t.nodes[cmp.Or(path, rootPath)] }

// clone returns a copy that shares data and ACLs.
func (t *tree) clone() *tree {
	c := &tree{
		zxid: t.zxid, nodes: make(map[string]*node, len(t.nodes)),
		ephemerals: make(map[int64]map[string]struct{}, len(t.ephemerals)), reapable: maps.Clone(t.reapable),
	}
	for path, n := range t.nodes {
		copied := *n
		copied.children = maps.Clone(n.children)
		c.nodes[path] = &copied
	}
	for id, paths := range t.ephemerals {
		c.ephemerals[id] = maps.Clone(paths)
	}
	return c
}

// A quota of a path is two znodes below /zookeeper/quota and that path: what it
// is limited to, which clients write, and what it uses, which the server writes.
const (
	limitsName = "/zookeeper_limits"
	statsName  = "/zookeeper_stats"
)

// account notes in the znode for it what a change of path makes of the usage of
// its quota. That is no change of the znode itself: it has no version.
func (t *tree) account(path string, bytes, count int) {
	if prefix, ok := strings.CutPrefix(path, quotaPath); ok && count > 0 {
		if prefix, ok = strings.CutSuffix(prefix, statsName); ok {
			usedBytes, usedCount := t.usage(prefix)
			t.nodes[path].data = fmt.Appendf(nil, "count=%d,bytes=%d", usedCount, usedBytes)
		}
		return
	}
	for prefix := path; len(t.nodes[quotaPath].children) > 0 && prefix != rootPath; prefix, _ = splitPath(prefix) {
		if t.nodes[quotaPath+prefix+limitsName] == nil {
			continue
		}
		var usedCount, usedBytes int
		stats := t.nodes[quotaPath+prefix+statsName]
		if stats == nil {
			return
		}
		if n, err := fmt.Sscanf(string(stats.data), "count=%d,bytes=%d", &usedCount, &usedBytes); n == 2 && err == nil {
			stats.data = fmt.Appendf(nil, "count=%d,bytes=%d", usedCount+count, usedBytes+bytes)
		}
		return
	}
}

// usage counts the data and the znodes at and below path.
func (t *tree) usage(path string) (bytes, count int64) { //nolint:nonamedreturns // Two numbers of one type.
	for p, n := range t.nodes {
		if p == path || strings.HasPrefix(p, strings.TrimSuffix(path, "/")+"/") {
			bytes += int64(len(n.data))
			count++
		}
	}
	return bytes, count
}

// Paths that a server always has.
const (
	rootPath      = "/"
	zookeeperPath = "/zookeeper"
	quotaPath     = "/zookeeper/quota"
	configPath    = "/zookeeper/config"
)

// splitPath returns the parent of a path that has a slash, and the name in it.
func splitPath(path string) (string, string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 1)], path[i+1:]
}

// isBad reports whether a server refuses a path before it looks at anything else.
func isBad(path string) bool { return !strings.Contains(path, "/") || strings.Contains(path, "\x00") }

func validatePath(path string) error {
	if jute.CheckPath(path) != nil {
		return Error(jute.ErrCodeBadArguments)
	}
	return nil
}

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
