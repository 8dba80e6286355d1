package memzk

import (
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// commit gives the steps the next zxid and applies them to every replica that
// does not lag. Without steps it only uses up the zxid, as a failed write does.
func (s *Server) commit(steps []step) []jute.Stat {
	t := &txn{zxid: s.primary.tree.zxid + 1, time: time.Now().Add(s.faults.skew).UnixMilli(), steps: steps}
	stats := s.primary.apply(t)
	for _, r := range s.lagging {
		r.pending = append(r.pending, t)
	}
	if s.opts.Committed != nil {
		s.report(steps)
	}
	return stats
}

// report reports the steps of a transaction to the observer.
func (s *Server) report(steps []step) {
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

// write handles a write request of one operation.
func (c *conn) write(op int32, d *jute.Decoder) (*jute.Encoder, error) {
	p := c.s.preparer(c.session.id, c.ids)
	if err := p.one(op, d); err != nil {
		c.s.commit(nil)
		c.catchUp()
		return nil, err
	}
	stats := c.s.commit(p.steps)
	c.catchUp()
	e := jute.NewEncoder(nil)
	switch op {
	case jute.OpCreate:
		e.String(p.steps[0].path)
	case jute.OpCreate2, jute.OpCreateContainer, jute.OpCreateTTL:
		e.String(p.steps[0].path)
		stats[0].Encode(e)
	case jute.OpSetData, jute.OpSetACL:
		stats[0].Encode(e)
	}
	return e, nil
}

// multi handles a transaction of many operations: all or none.
func (c *conn) multi(d *jute.Decoder) (*jute.Encoder, error) {
	p := c.s.preparer(c.session.id, c.ids)
	var ops []int32
	var failed error
	failedAt := -1
	for {
		var h jute.MultiHeader
		h.Decode(d)
		if d.Err() != nil || !h.Done && (!multiOp(h.Type) || !c.s.knows(h.Type)) {
			c.s.commit(nil)
			c.catchUp()
			return nil, Error(jute.ErrCodeMarshallingError)
		}
		if h.Done {
			break
		}
		op := h.Type
		var r createRequest
		if isCreate(op) {
			r = decodeCreate(op, d)
		}
		switch {
		case isCreate(op) && !p.readable(op, &r, failed != nil):
			c.s.commit(nil)
			c.catchUp()
			return nil, Error(jute.ErrCodeMarshallingError)
		case failed != nil:
			skipOp(op, d)
		case isCreate(op):
			op, failed = p.createInMulti(op, r)
		default:
			failed = p.one(op, d)
		}
		if failed != nil && failedAt < 0 {
			failedAt = len(ops)
		}
		ops = append(ops, op)
	}
	if failed != nil {
		c.s.commit(nil)
		c.catchUp()
		return multiFailure(len(ops), failedAt, codeOf(failed)), nil
	}
	stats := c.s.commit(p.steps)
	c.catchUp()
	return multiSuccess(ops, p.steps, stats), nil
}

// multiOp reports whether op may be part of a multi.
func multiOp(op int32) bool {
	return isCreate(op) || op == jute.OpDelete || op == jute.OpSetData || op == jute.OpCheck
}

func isCreate(op int32) bool {
	return op == jute.OpCreate || op == jute.OpCreate2 || op == jute.OpCreateContainer || op == jute.OpCreateTTL
}

// skipOp reads over the body of an operation that is no create.
func skipOp(op int32, d *jute.Decoder) {
	switch {
	case isCreate(op):
	case op == jute.OpSetData:
		_, _, _ = d.String(), d.Buffer(), d.Int32()
	default:
		_, _ = d.String(), d.Int32()
	}
}

// multiFailure encodes what a failed multi answers: code 0 for what stands
// before the failure, and "inconsistency" for what was not looked at.
func multiFailure(n, at int, code int32) *jute.Encoder {
	e := jute.NewEncoder(nil)
	for i := range n {
		result := jute.ErrCodeOK
		switch {
		case i == at:
			result = code
		case i > at:
			result = jute.ErrCodeRuntimeInconsistency
		}
		(&jute.MultiHeader{Type: jute.OpError, Err: result}).Encode(e)
		e.Int32(result)
	}
	endMulti(e)
	return e
}

func multiSuccess(ops []int32, steps []step, stats []jute.Stat) *jute.Encoder {
	e := jute.NewEncoder(nil)
	for i, op := range ops {
		if op == jute.OpCreateContainer || op == jute.OpCreateTTL {
			op = jute.OpCreate2
		}
		(&jute.MultiHeader{Type: op}).Encode(e)
		switch op {
		case jute.OpCreate:
			e.String(steps[i].path)
		case jute.OpCreate2:
			e.String(steps[i].path)
			stats[i].Encode(e)
		case jute.OpSetData:
			stats[i].Encode(e)
		}
	}
	endMulti(e)
	return e
}

func endMulti(e *jute.Encoder) {
	(&jute.MultiHeader{Type: jute.OpError, Done: true, Err: -1}).Encode(e)
}
