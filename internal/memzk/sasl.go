package memzk

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

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
