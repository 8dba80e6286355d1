package memzk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// handle handles one packet; false ends the connection. It runs with Server.mu
// held.
func (c *conn) handle(p packet) bool {
	c.received++
	switch {
	case p.word != "":
		c.out.push(answer{frame: []byte(c.s.fourLetterWord(p.word))})
		return false
	case c.session == nil:
		return c.handshake(p.frame)
	}
	d := jute.NewDecoder(p.frame)
	var h jute.RequestHeader
	if d.Get(&h) != nil {
		return false
	}
	s := c.s
	s.touch(c.session)
	s.requests[h.Op]++
	f := s.opts.Faults.Strike(h.Op, p.frame[8:])
	switch {
	case f.Drop:
		return false
	case f.Code == jute.ErrCodeUnimplemented || !s.knows(h.Op):
		c.reply(h.Xid, -1, jute.ErrCodeUnimplemented, f.At)
		return false
	case s.refusesWrites(h.Op):
		c.reply(h.Xid, c.replica.tree.zxid, jute.ErrCodeNotReadOnly, f.At)
		return h.Op != jute.OpClose
	case f.Code != jute.ErrCodeOK:
		c.reply(h.Xid, c.replica.tree.zxid, f.Code, f.At)
		return true
	case h.Op == jute.OpAuth:
		return c.auth(h.Xid, d)
	case h.Op == jute.OpSASL:
		return c.sasl(h.Xid, d)
	case c.unproved(h.Op):
		c.reply(h.Xid, c.replica.tree.zxid, jute.ErrCodeSessionClosedRequiresAuth, f.At)
		return false
	}
	body, err := c.do(h.Op, d)
	if f.Lose {
		return false
	}
	if err != nil {
		body = nil
	}
	if h.Op == jute.OpPing {
		h.Xid = jute.XidPing
	}
	c.reply(h.Xid, c.replica.tree.zxid, codeOf(err), f.At, body...)
	return h.Op != jute.OpClose
}

// reply queues one reply. It needs Server.mu.
func (c *conn) reply(xid int32, zxid int64, code int32, at time.Time, body ...any) {
	c.push(encoded(jute.ReplyHeader{Xid: xid, Zxid: zxid, Err: code}, body), at)
}

// added is the version that an operation came with, where that is after 3.4.
var added = map[int32]string{
	jute.OpCreate2: "3.5.9", jute.OpReconfig: "3.5.9", jute.OpCheckWatches: "3.5.9", jute.OpRemoveWatches: "3.5.9",
	jute.OpCreateContainer: "3.5.9", jute.OpCreateTTL: "3.5.9",
	jute.OpMultiRead: "3.6.4", jute.OpGetEphemerals: "3.6.4", jute.OpGetAllChildrenNumber: "3.6.4",
	jute.OpSetWatches2: "3.6.4", jute.OpAddWatch: "3.6.4", jute.OpWhoAmI: "3.7.2",
}

func (s *Server) knows(op int32) bool {
	switch op {
	case jute.OpCreateSession, jute.OpError, jute.OpNotification, jute.OpDeleteContainer:
		return false
	}
	version, later := added[op]
	return jute.OpName(op) != "unknown" && (!later || s.opts.since(version))
}

// do carries a request out and returns the body of its reply. An error is answered by its
// code.
func (c *conn) do(op int32, d *jute.Decoder) ([]any, error) {
	switch op {
	case jute.OpPing:
		return nil, nil
	case jute.OpMultiRead:
		return c.multiRead(d)
	case jute.OpWhoAmI:
		return c.whoAmI(), nil
	case jute.OpSetWatches, jute.OpSetWatches2:
		return nil, c.setWatches(op, d)
	case jute.OpExists, jute.OpGetData, jute.OpGetChildren, jute.OpGetChildren2:
		if path, watch := d.String(), d.Bool(); d.Err() == nil {
			return c.readZnode(op, path, watch)
		}
	case jute.OpAddWatch:
		if path, mode := d.String(), d.Int32(); d.Err() == nil {
			switch mode {
			case jute.AddWatchPersistent:
				c.addPersistent(path, persistent)
			case jute.AddWatchPersistentRecursive:
				c.addPersistent(path, recursive)
			default:
				return nil, Error(jute.ErrCodeMarshallingError)
			}
			return []any{jute.ErrCodeOK}, nil
		}
	case jute.OpCheckWatches, jute.OpRemoveWatches:
		if path, kind := d.String(), d.Int32(); d.Err() == nil {
			return nil, c.checkOrRemoveWatches(op, path, kind)
		}
	case jute.OpGetACL, jute.OpSync, jute.OpGetEphemerals, jute.OpGetAllChildrenNumber:
		if path := d.String(); d.Err() == nil {
			return c.ask(op, path)
		}
	default:
		return c.change(op, d)
	}
	return nil, d.Err()
}

func (c *conn) change(op int32, d *jute.Decoder) ([]any, error) {
	switch op {
	case jute.OpMulti:
		return c.multi(d)
	case jute.OpClose:
		c.s.closeSession(c.session)
		c.catchUp()
		return nil, nil
	case jute.OpReconfig:
		return nil, c.refuse(jute.ErrCodeReconfigDisabled)
	case jute.OpCheck: // stands only inside a multi
		return nil, Error(jute.ErrCodeUnimplemented)
	}
	p := c.s.preparer(c.session.id, c.ids)
	r, err := decodeRequest(op, d)
	if err == nil {
		err = p.prepare(op, r)
	}
	if err != nil {
		return nil, c.refuse(codeOf(err))
	}
	stats := c.s.commit(p.steps)
	c.catchUp()
	return writeResult(op, &p.steps[0], stats[0]), nil
}

// refuse returns the error of a write that failed. It uses up a zxid, too.
func (c *conn) refuse(code int32) error {
	c.s.commit(nil)
	c.catchUp()
	return Error(code)
}

// Error is an error code of ZooKeeper, such as jute.ErrCodeNoNode.
type Error int32

// Error returns the code.
func (e Error) Error() string { return fmt.Sprintf("ZooKeeper error %d", int32(e)) }

// codeOf returns the code of an error that the data model gave; 0 for nil.
func codeOf(err error) int32 {
	if err == nil {
		return jute.ErrCodeOK
	}
	if e, ok := errors.AsType[Error](err); ok {
		return int32(e)
	}
	return jute.ErrCodeMarshallingError
}

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
		masked := slices.Clone(acl)
		for i := range masked {
			if masked[i].Scheme == "digest" {
				user, _, _ := strings.Cut(masked[i].ID, ":")
				masked[i].ID = user + ":x"
			}
		}
		acl = masked
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

// commit gives the steps the next zxid and applies them to every replica that
// does not lag. Without steps it only uses up the zxid, as a failed write does.
func (s *Server) commit(steps []step) []jute.Stat {
	t := &txn{zxid: s.primary.tree.zxid + 1, time: s.opts.Faults.Now().UnixMilli(), steps: steps}
	stats := s.primary.apply(t)
	for _, r := range s.lagging {
		r.pending = append(r.pending, t)
	}
	if s.opts.Committed != nil {
		var changes []Change
		for i := range steps {
			switch st := &steps[i]; st.op {
			case jute.OpCreate, jute.OpSetData:
				changes = append(changes, Change{st.path, append([]byte{}, st.data...)})
			case jute.OpDelete:
				changes = append(changes, Change{st.path, nil})
			}
		}
		s.opts.Committed(changes)
	}
	return stats
}

// writeResult is what a write of one operation answers.
func writeResult(op int32, st *step, stat jute.Stat) []any {
	switch op {
	case jute.OpCreate:
		return []any{st.path}
	case jute.OpCreate2, jute.OpCreateContainer, jute.OpCreateTTL:
		return []any{st.path, stat}
	case jute.OpSetData, jute.OpSetACL:
		return []any{stat}
	}
	return nil
}

// multi handles a transaction of many operations: all or none.
func (c *conn) multi(d *jute.Decoder) ([]any, error) {
	p := c.s.preparer(c.session.id, c.ids)
	var ops []int32
	var failed error
	failedAt := 0
	for {
		var h jute.MultiHeader
		if err := d.Get(&h); err != nil || !h.Done && (!multiOp(h.Type) || !c.s.knows(h.Type)) {
			return nil, c.refuse(jute.ErrCodeMarshallingError)
		}
		if h.Done {
			break
		}
		op := h.Type
		r, err := decodeRequest(op, d)
		if err != nil || !p.readable(op, &r, failed != nil) {
			return nil, c.refuse(jute.ErrCodeMarshallingError)
		}
		if failed == nil {
			op, failed = p.prepareInMulti(op, r)
			failedAt = len(ops)
		}
		ops = append(ops, op)
	}
	if failed != nil {
		_ = c.refuse(codeOf(failed))
		return multiResult(ops, nil, nil, failedAt, failed), nil
	}
	stats := c.s.commit(p.steps)
	c.catchUp()
	return multiResult(ops, p.steps, stats, 0, nil), nil
}

func multiOp(op int32) bool {
	return jute.IsCreate(op) || op == jute.OpDelete || op == jute.OpSetData || op == jute.OpCheck
}

// multiResult is what a multi answers. One that failed has code 0 for what stands before
// the failure, and "inconsistency" for what was not looked at.
func multiResult(ops []int32, steps []step, stats []jute.Stat, failedAt int, failed error) []any {
	var body []any
	for i, op := range ops {
		code := jute.ErrCodeOK
		switch {
		case failed == nil && (op == jute.OpCreateContainer || op == jute.OpCreateTTL):
			op = jute.OpCreate2
		case failed != nil && i == failedAt:
			code = codeOf(failed)
		case failed != nil && i > failedAt:
			code = jute.ErrCodeRuntimeInconsistency
		}
		if failed != nil {
			body = append(body, jute.MultiHeader{Type: jute.OpError, Err: code}, code)
		} else {
			body = append(body, jute.MultiHeader{Type: op}, writeResult(op, &steps[i], stats[i]))
		}
	}
	return append(body, endOfMulti)
}

var endOfMulti = jute.MultiHeader{Type: jute.OpError, Done: true, Err: -1}
