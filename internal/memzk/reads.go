package memzk

import (
	"maps"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// readable returns the znode that the connection may look at with perms.
func (c *conn) readable(path string, perms int32) (*node, error) {
	n := c.replica.tree.get(path)
	if n == nil {
		return nil, Error(jute.ErrCodeNoNode)
	}
	return n, checkACL(n.acl, perms, c.ids)
}

// readZnode carries out a read that may set a watch. exists sets it whether the znode is there
// or not, the others only if they can read the znode.
func (c *conn) readZnode(op int32, path string, watch bool) ([]any, error) {
	if op == jute.OpExists {
		return c.exists(path, watch)
	}
	n, err := c.readable(path, jute.PermRead)
	if err != nil {
		return nil, err
	}
	watches := c.replica.childWatches
	if op == jute.OpGetData {
		watches = c.replica.dataWatches
	}
	if watch {
		watches.add(path, c, oneShot)
	}
	switch op {
	case jute.OpGetData:
		return []any{n.data, n.stat()}, nil
	case jute.OpGetChildren:
		return []any{n.childNames()}, nil
	}
	return []any{n.childNames(), n.stat()}, nil
}

func (c *conn) exists(path string, watch bool) ([]any, error) {
	if strings.Contains(path, "\x00") {
		return nil, Error(jute.ErrCodeBadArguments)
	}
	n := c.replica.tree.get(path)
	if n != nil && c.s.opts.since("3.9.3") {
		if err := checkACL(n.acl, jute.PermRead, c.ids); err != nil {
			return nil, err
		}
	}
	if watch {
		c.replica.dataWatches.add(path, c, oneShot)
	}
	if n == nil {
		return nil, Error(jute.ErrCodeNoNode)
	}
	return []any{n.stat()}, nil
}

// ask carries out a read of a path that sets no watch.
func (c *conn) ask(op int32, path string) ([]any, error) {
	switch op {
	case jute.OpSync:
		c.catchUp()
		return []any{path}, nil
	case jute.OpGetEphemerals:
		prefix := strings.TrimSpace(path)
		paths := slices.Sorted(maps.Keys(c.replica.tree.ephemerals[c.session.id]))
		return []any{slices.DeleteFunc(paths, func(p string) bool { return prefix != rootPath && !strings.HasPrefix(p, prefix) })}, nil
	case jute.OpGetAllChildrenNumber:
		_, count := c.replica.tree.usage(path)
		_, err := c.readable(path, jute.PermRead)
		return []any{int32(count - 1)}, err //nolint:gosec // a tree in memory
	}
	n, err := c.readable(path, jute.PermRead|jute.PermAdmin)
	if err != nil {
		return nil, err
	}
	acl := n.acl
	if !allowed(acl, jute.PermAdmin, c.ids) {
		acl = maskDigests(acl)
	}
	return []any{acl, n.stat()}, nil
}

// multiRead answers many reads at once. Its watch flags are ignored.
func (c *conn) multiRead(d *jute.Decoder) ([]any, error) {
	var body []any
	for {
		var h jute.MultiHeader
		if err := d.Get(&h); err != nil {
			return nil, err
		}
		if h.Done {
			return append(body, endOfMulti), nil
		}
		if h.Type != jute.OpGetData && h.Type != jute.OpGetChildren {
			return nil, Error(jute.ErrCodeMarshallingError)
		}
		path, _ := d.String(), d.Bool()
		if d.Err() != nil {
			return nil, d.Err()
		}
		if result, err := c.readZnode(h.Type, path, false); err != nil {
			body = append(body, jute.MultiHeader{Type: jute.OpError, Err: codeOf(err)}, codeOf(err))
		} else {
			body = append(body, jute.MultiHeader{Type: h.Type}, result)
		}
	}
}

func (c *conn) whoAmI() []any {
	shown := []identity{}
	for _, i := range c.ids {
		if i.scheme == "digest" {
			i.id, _, _ = strings.Cut(i.id, ":")
		}
		shown = append(shown, i)
	}
	return []any{shown}
}
