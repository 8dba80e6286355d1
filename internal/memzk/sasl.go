package memzk

import (
	"crypto/md5" //nolint:gosec // DIGEST-MD5 is defined with it
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// SASL DIGEST-MD5 (RFC 2831) as a server with a JAAS file does it: a challenge for
// the first token, an answer that proves the password for the second.

// The names by which ZooKeeper's servers identify themselves.
const (
	saslRealm = "zk-sasl-md5"
	saslURI   = "zookeeper/zk-sasl-md5"
)

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
		said := directives(string(token))
		password, ok := users[said["username"]]
		if !ok || said["nonce"] != c.nonce || said["digest-uri"] != saslURI || said["response"] != c.saslDigest("AUTHENTICATE", password, said) {
			c.reply(xid, 0, jute.ErrCodeAuthFailed, time.Time{})
			return false
		}
		c.reply(xid, 0, jute.ErrCodeOK, time.Time{}, "rspauth="+c.saslDigest("", password, said))
		c.addIdentity(identity{"sasl", said["username"]})
		return true
	}
}

// saslDigest is response-value of RFC 2831, 2.1.2.1.
func (c *conn) saslDigest(method, password string, said map[string]string) string {
	sum := func(s string) string {
		h := md5.Sum([]byte(s)) //nolint:gosec // see the import
		return string(h[:])
	}
	a1 := sum(said["username"]+":"+saslRealm+":"+password) + ":" + c.nonce + ":" + said["cnonce"]
	a2 := hex.EncodeToString([]byte(sum(method + ":" + saslURI)))
	return hex.EncodeToString([]byte(sum(hex.EncodeToString([]byte(sum(a1))) + ":" + c.nonce + ":" + said["nc"] + ":" + said["cnonce"] + ":" + said["qop"] + ":" + a2)))
}

var directive = regexp.MustCompile(`([a-z-]+)=(?:"([^"]*)"|([^",]*))`)

func directives(s string) map[string]string {
	found := map[string]string{}
	for _, m := range directive.FindAllStringSubmatch(s, -1) {
		found[m[1]] = m[2] + m[3]
	}
	return found
}

// unproved reports whether the server insists on SASL and the client has not done it.
func (c *conn) unproved(op int32) bool {
	if !c.s.opts.RequireSASL || op == jute.OpPing || op == jute.OpClose {
		return false
	}
	for _, i := range c.ids {
		if i.scheme == "sasl" {
			return false
		}
	}
	return true
}
