package memzk

import (
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
	h.Decode(d)
	if d.Err() != nil {
		return false
	}
	s := c.s
	s.touch(c.session)
	s.requests[h.Op]++
	f := s.faults.take(h.Op)
	switch {
	case f.loseBefore, s.faults.hangUp[h.Op], s.faults.hangUp[AnyOp] && h.Op != jute.OpPing:
		return false
	case f.refused && f.code == jute.ErrCodeUnimplemented || !s.knows(h.Op):
		c.reply(h.Xid, -1, jute.ErrCodeUnimplemented, nil, f.until())
		return false
	case s.refusesWrites(h.Op):
		c.reply(h.Xid, c.replica.tree.zxid, jute.ErrCodeNotReadOnly, nil, f.until())
		return h.Op != jute.OpClose
	case f.refused:
		c.reply(h.Xid, c.replica.tree.zxid, f.code, nil, f.until())
		return true
	case h.Op == jute.OpAuth:
		return c.auth(h.Xid, d)
	case h.Op == jute.OpSASL:
		return c.sasl(h.Xid, d)
	case c.unproved(h.Op):
		c.reply(h.Xid, c.replica.tree.zxid, jute.ErrCodeSessionClosedRequiresAuth, nil, f.until())
		return false
	}
	e, err := c.do(h.Op, d)
	if f.loseAfter {
		return false
	}
	var body []byte
	if err == nil && e != nil {
		body = e.Bytes()
	}
	xid := h.Xid
	if h.Op == jute.OpPing {
		xid = jute.XidPing
	}
	c.reply(xid, c.replica.tree.zxid, codeOf(err), body, f.until())
	return h.Op != jute.OpClose
}

// noToken is the answer to a SASL token, an absent buffer.
var noToken = []byte{0xff, 0xff, 0xff, 0xff}

// reply queues one reply. It needs Server.mu.
func (c *conn) reply(xid int32, zxid int64, code int32, body []byte, at time.Time) {
	e := jute.NewEncoder(make([]byte, 0, jute.ReplyHeaderSize+len(body)))
	(&jute.ReplyHeader{Xid: xid, Zxid: zxid, Err: code}).Encode(e)
	e.Raw(body)
	c.push(e.Bytes(), at)
}

// added is the version that an operation came with, where that is after 3.4.
var added = map[int32]string{
	jute.OpCreate2: "3.5.9", jute.OpReconfig: "3.5.9", jute.OpCheckWatches: "3.5.9", jute.OpRemoveWatches: "3.5.9",
	jute.OpCreateContainer: "3.5.9", jute.OpCreateTTL: "3.5.9",
	jute.OpMultiRead: "3.6.4", jute.OpGetEphemerals: "3.6.4", jute.OpGetAllChildrenNumber: "3.6.4",
	jute.OpSetWatches2: "3.6.4", jute.OpAddWatch: "3.6.4", jute.OpWhoAmI: "3.7.2",
}

// knows reports whether the server knows the operation.
func (s *Server) knows(op int32) bool {
	switch op {
	case jute.OpCreateSession, jute.OpError, jute.OpNotification, jute.OpDeleteContainer:
		return false
	}
	version, later := added[op]
	return jute.OpName(op) != "unknown" && (!later || s.opts.since(version))
}

// do carries a request out. An error is answered by its code.
func (c *conn) do(op int32, d *jute.Decoder) (*jute.Encoder, error) {
	switch op {
	case jute.OpPing:
		return nil, nil
	case jute.OpExists:
		return c.exists(d)
	case jute.OpGetData:
		return c.getData(d, true)
	case jute.OpGetACL:
		return c.getACL(d)
	case jute.OpGetChildren:
		return c.getChildren(d, true, false)
	case jute.OpGetChildren2:
		return c.getChildren(d, true, true)
	case jute.OpSync:
		return c.sync(d)
	case jute.OpMultiRead:
		return c.multiRead(d)
	case jute.OpGetEphemerals:
		return c.getEphemerals(d)
	case jute.OpGetAllChildrenNumber:
		return c.getAllChildrenNumber(d)
	case jute.OpWhoAmI:
		return c.whoAmI(), nil
	case jute.OpSetWatches, jute.OpSetWatches2:
		return c.setWatches(op, d)
	case jute.OpAddWatch:
		return c.addWatch(d)
	case jute.OpCheckWatches, jute.OpRemoveWatches:
		return c.checkOrRemoveWatches(op, d)
	}
	return c.change(op, d)
}

// change carries a write request out.
func (c *conn) change(op int32, d *jute.Decoder) (*jute.Encoder, error) {
	switch op {
	case jute.OpMulti:
		return c.multi(d)
	case jute.OpClose:
		c.s.closeSession(c.session)
		c.catchUp()
		return nil, nil
	case jute.OpReconfig:
		c.s.commit(nil)
		c.catchUp()
		return nil, Error(jute.ErrCodeReconfigDisabled)
	case jute.OpCheck: // stands only inside a multi
		return nil, Error(jute.ErrCodeUnimplemented)
	}
	return c.write(op, d)
}
