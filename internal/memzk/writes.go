package memzk

import "github.com/zkagent/zkagent/internal/jute"

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

func (c *conn) write(op int32, d *jute.Decoder) ([]any, error) {
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
		return multiFailure(len(ops), failedAt, codeOf(failed)), nil
	}
	stats := c.s.commit(p.steps)
	c.catchUp()
	return multiSuccess(ops, p.steps, stats), nil
}

func multiOp(op int32) bool {
	return jute.IsCreate(op) || op == jute.OpDelete || op == jute.OpSetData || op == jute.OpCheck
}

// multiFailure is what a failed multi answers: code 0 for what stands before the failure,
// and "inconsistency" for what was not looked at.
func multiFailure(n, at int, code int32) []any {
	var body []any
	for i := range n {
		result := jute.ErrCodeOK
		switch {
		case i == at:
			result = code
		case i > at:
			result = jute.ErrCodeRuntimeInconsistency
		}
		body = append(body, jute.MultiHeader{Type: jute.OpError, Err: result}, result)
	}
	return append(body, endOfMulti)
}

func multiSuccess(ops []int32, steps []step, stats []jute.Stat) []any {
	var body []any
	for i, op := range ops {
		if op == jute.OpCreateContainer || op == jute.OpCreateTTL {
			op = jute.OpCreate2
		}
		body = append(body, jute.MultiHeader{Type: op}, writeResult(op, &steps[i], stats[i]))
	}
	return append(body, endOfMulti)
}

var endOfMulti = jute.MultiHeader{Type: jute.OpError, Done: true, Err: -1}
