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

// exists sets its watch whether the znode is there or not.
func (c *conn) exists(d *jute.Decoder) (*jute.Encoder, error) {
	path, watch := d.String(), d.Bool()
	if d.Err() != nil {
		return nil, d.Err()
	}
	if hasNull(path) {
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
	return encodeStat(jute.NewEncoder(nil), n), nil
}

// watchable reads the path and the watch flag of a request. It sets the watch in watches
// only if the znode can be read.
func (c *conn) watchable(d *jute.Decoder, watch bool, watches *watchTable) (*node, error) {
	path, wanted := d.String(), d.Bool()
	if d.Err() != nil {
		return nil, d.Err()
	}
	n, err := c.readable(path, jute.PermRead)
	if err == nil && watch && wanted {
		watches.add(path, c, oneShot)
	}
	return n, err
}

func (c *conn) getData(d *jute.Decoder, watch bool) (*jute.Encoder, error) {
	n, err := c.watchable(d, watch, c.replica.dataWatches)
	if err != nil {
		return nil, err
	}
	e := jute.NewEncoder(nil)
	e.Buffer(n.data)
	return encodeStat(e, n), nil
}

func (c *conn) getChildren(d *jute.Decoder, watch, withStat bool) (*jute.Encoder, error) {
	n, err := c.watchable(d, watch, c.replica.childWatches)
	if err != nil {
		return nil, err
	}
	e := jute.NewEncoder(nil)
	e.Strings(n.childNames())
	if withStat {
		encodeStat(e, n)
	}
	return e, nil
}

func (c *conn) getACL(d *jute.Decoder) (*jute.Encoder, error) {
	path := d.String()
	if d.Err() != nil {
		return nil, d.Err()
	}
	n, err := c.readable(path, jute.PermRead|jute.PermAdmin)
	if err != nil {
		return nil, err
	}
	acl := n.acl
	if !allowed(acl, jute.PermAdmin, c.ids) {
		acl = maskDigests(acl)
	}
	e := jute.NewEncoder(nil)
	jute.EncodeACLs(e, acl)
	return encodeStat(e, n), nil
}

// sync lets a view that lags catch up.
func (c *conn) sync(d *jute.Decoder) (*jute.Encoder, error) {
	path := d.String()
	if d.Err() != nil {
		return nil, d.Err()
	}
	c.catchUp()
	e := jute.NewEncoder(nil)
	e.String(path)
	return e, nil
}

func (c *conn) getEphemerals(d *jute.Decoder) (*jute.Encoder, error) {
	prefix := d.String()
	if d.Err() != nil {
		return nil, d.Err()
	}
	if strings.TrimSpace(prefix) == rootPath {
		prefix = ""
	}
	paths := []string{}
	for _, path := range slices.Sorted(maps.Keys(c.replica.tree.ephemerals[c.session.id])) {
		if strings.HasPrefix(path, strings.TrimSpace(prefix)) {
			paths = append(paths, path)
		}
	}
	e := jute.NewEncoder(nil)
	e.Strings(paths)
	return e, nil
}

func (c *conn) getAllChildrenNumber(d *jute.Decoder) (*jute.Encoder, error) {
	path := d.String()
	if d.Err() != nil {
		return nil, d.Err()
	}
	if _, err := c.readable(path, jute.PermRead); err != nil {
		return nil, err
	}
	e := jute.NewEncoder(nil)
	e.Count(c.replica.tree.descendants(path))
	return e, nil
}

// multiRead answers many reads at once. Its watch flags are ignored.
func (c *conn) multiRead(d *jute.Decoder) (*jute.Encoder, error) {
	e := jute.NewEncoder(nil)
	for {
		var h jute.MultiHeader
		h.Decode(d)
		if d.Err() != nil {
			return nil, d.Err()
		}
		if h.Done {
			endMulti(e)
			return e, nil
		}
		var result *jute.Encoder
		var err error
		switch h.Type {
		case jute.OpGetData:
			result, err = c.getData(d, false)
		case jute.OpGetChildren:
			result, err = c.getChildren(d, false, false)
		default:
			return nil, Error(jute.ErrCodeMarshallingError)
		}
		if d.Err() != nil {
			return nil, d.Err()
		}
		if err != nil {
			(&jute.MultiHeader{Type: jute.OpError, Err: codeOf(err)}).Encode(e)
			e.Int32(codeOf(err))
			continue
		}
		(&jute.MultiHeader{Type: h.Type}).Encode(e)
		e.Raw(result.Bytes())
	}
}

func (c *conn) whoAmI() *jute.Encoder {
	e := jute.NewEncoder(nil)
	e.Count(len(c.ids))
	for _, i := range c.ids {
		e.String(i.scheme)
		user, _, _ := strings.Cut(i.id, ":")
		if i.scheme != "digest" {
			user = i.id
		}
		e.String(user)
	}
	return e
}

func encodeStat(e *jute.Encoder, n *node) *jute.Encoder {
	stat := n.stat()
	stat.Encode(e)
	return e
}
