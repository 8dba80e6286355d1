package memzk

import (
	"crypto/subtle"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// handshake handles the first frame; false ends the connection.
func (c *conn) handshake(frame []byte) bool {
	s := c.s
	s.requests[jute.OpCreateSession]++
	var req jute.ConnectRequest
	if jute.NewDecoder(frame).Get(&req) != nil {
		return false
	}
	if req.LastZxidSeen > c.replica.tree.zxid {
		s.opts.Logger.Info("client has seen a later zxid", "zxid", req.LastZxidSeen)
		return false
	}
	if s.readOnly && (req.ReadOnly == nil || !*req.ReadOnly || req.SessionID != 0) {
		return false
	}
	f := s.opts.Faults.Strike(jute.OpCreateSession, frame)
	if f.Drop {
		return false
	}
	timeout := s.clamp(time.Duration(req.Timeout) * time.Millisecond)
	sess := c.findSession(&req, timeout, f.NewSession)
	if sess != nil {
		sess.conn = c
		c.session = sess
	}
	if f.Lose {
		return false
	}
	c.push(connectResponse(sess, req.ReadOnly != nil, s.readOnly), f.At)
	return sess != nil && !f.Close
}

// findSession opens or takes up the session that the client asks for; nil means
// that it is gone. A connection that already has the session is ended first,
// even when the password then turns out to be wrong, as 3.8 does.
func (c *conn) findSession(req *jute.ConnectRequest, timeout time.Duration, another bool) *session {
	s := c.s
	if req.SessionID == 0 {
		return s.openSession(timeout)
	}
	sess := s.sessions[req.SessionID]
	if another {
		if sess != nil {
			s.expireSession(sess)
		}
		return s.openSession(timeout)
	}
	if sess == nil {
		return nil
	}
	if old := sess.conn; old != nil {
		old.end()
	}
	if subtle.ConstantTimeCompare(sess.password, req.Password) == 0 {
		return nil
	}
	sess.timeout = timeout
	s.touch(sess)
	s.wakeClock()
	return sess
}

// connectResponse encodes the answer; nil stands for a session that is gone.
func connectResponse(sess *session, withReadOnly, readOnly bool) []byte {
	r := jute.ConnectResponse{Password: make([]byte, 16)}
	if withReadOnly {
		r.ReadOnly = &readOnly
	}
	if sess != nil {
		r.Timeout = int32(sess.timeout.Milliseconds()) //nolint:gosec // It came as 32 bits.
		r.SessionID = sess.id
		r.Password = sess.password
	}
	return encoded(r)
}

// auth checks a credential; a wrong one ends the connection after the reply.
func (c *conn) auth(xid int32, d *jute.Decoder) bool {
	var kind int32 // is not used
	var scheme string
	var credential []byte
	if d.Get(&kind, &scheme, &credential) != nil {
		return false
	}
	code := jute.ErrCodeOK
	switch scheme {
	case "digest":
		digest := jute.Digest(string(credential))
		if c.s.opts.SuperDigest != "" && digest == c.s.opts.SuperDigest {
			c.addIdentity(identity{superScheme, ""})
		}
		c.addIdentity(identity{"digest", digest})
	case "ip":
		c.addIdentity(identity{"ip", c.ip})
	default:
		code = jute.ErrCodeAuthFailed
	}
	c.reply(xid, 0, code, time.Time{})
	return code == jute.ErrCodeOK
}

func (c *conn) addIdentity(i identity) {
	if !slices.Contains(c.ids, i) {
		c.ids = append(c.ids, i)
	}
}
