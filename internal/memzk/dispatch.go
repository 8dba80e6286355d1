package memzk

import (
	"errors"
	"fmt"
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
		path, watch := d.String(), d.Bool()
		if d.Err() != nil {
			return nil, d.Err()
		}
		return c.readZnode(op, path, watch)
	case jute.OpAddWatch, jute.OpCheckWatches, jute.OpRemoveWatches:
		path, kind := d.String(), d.Int32()
		switch {
		case d.Err() != nil:
			return nil, d.Err()
		case op == jute.OpAddWatch:
			return c.addWatch(path, kind)
		}
		return nil, c.checkOrRemoveWatches(op, path, kind)
	case jute.OpGetACL, jute.OpSync, jute.OpGetEphemerals, jute.OpGetAllChildrenNumber:
		path := d.String()
		if d.Err() != nil {
			return nil, d.Err()
		}
		return c.ask(op, path)
	}
	return c.change(op, d)
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
	return c.write(op, d)
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
