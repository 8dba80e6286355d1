package memzk

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/pace"
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
	r := jute.ConnectResponse{Password: make([]byte, 16)}
	if req.ReadOnly != nil {
		r.ReadOnly = &s.readOnly
	}
	if sess != nil {
		r.Timeout, r.SessionID, r.Password = int32(sess.timeout.Milliseconds()), sess.id, sess.password //nolint:gosec // It came as 32 bits.
	}
	c.push(encoded(r), f.At)
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
	pace.Notify(s.wake)
	return sess
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

// SASL DIGEST-MD5 (RFC 2831) as a server with a JAAS file does it: a challenge for
// the first token, an answer that proves the password for the second.

// saslRealm is the realm of ZooKeeper's servers.
const saslRealm = "zk-sasl-md5"

// sasl handles one token; false ends the connection.
func (c *conn) sasl(xid int32, d *jute.Decoder) bool {
	token := d.Buffer()
	switch users := c.s.opts.SASLUsers; {
	case users == nil:
		// As a server without SASL: no token, and the client is on its own.
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, []byte(nil))
		return true
	case c.nonce == "":
		c.nonce = rand.Text()
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, fmt.Sprintf(`realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess`, saslRealm, c.nonce))
		return true
	default:
		said, _ := jute.ParseDirectives(string(token)) // nil proves nothing
		password, ok := users[said["username"]]
		if !ok || said["nonce"] != c.nonce || said["digest-uri"] != jute.DigestURI || said["response"] != c.saslDigest("AUTHENTICATE", password, said) {
			c.reply(xid, 0, jute.ErrCodeAuthFailed, time.Time{})
			return false
		}
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, "rspauth="+c.saslDigest("", password, said))
		c.addIdentity(identity{"sasl", said["username"]})
		return true
	}
}

func (c *conn) saslDigest(method, password string, said map[string]string) string {
	return jute.DigestResponse(method, said["username"], saslRealm, password, c.nonce, said["cnonce"])
}

// unproved reports whether the server insists on SASL and the client has not done it.
func (c *conn) unproved(op int32) bool {
	return c.s.opts.RequireSASL && op != jute.OpPing && op != jute.OpClose &&
		!slices.ContainsFunc(c.ids, func(i identity) bool { return i.scheme == "sasl" })
}
