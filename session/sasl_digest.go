package session

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// DigestMD5 returns the SASL mechanism DIGEST-MD5 (RFC 2831) with a user of the
// server's JAAS file. The password is never sent. Only the quality of
// protection "auth" is used: the connection itself is not protected; use TLS.
func DigestMD5(user, password string) SASLMechanism { return digestMD5{user, password} }

type digestMD5 struct{ user, password string }

func (digestMD5) Name() string         { return "DIGEST-MD5" }
func (digestMD5) Prepare(string) error { return nil }

// String keeps the password out of logs.
func (m digestMD5) String() string { return "DIGEST-MD5 " + m.user }

func (m digestMD5) Begin(string) (SASLExchange, error) {
	if m.user == "" {
		return nil, errors.New("the user is empty")
	}
	return &digestExchange{digestMD5: m, cnonce: rand.Text()}, nil
}

type digestExchange struct {
	digestMD5
	cnonce string
	want   string // what proves that the server knows the password, too
	step   int
}

// Step answers the challenge, and then checks the server's answer.
func (x *digestExchange) Step(challenge []byte) ([]byte, bool, error) {
	x.step++
	switch x.step {
	case 1:
		return nil, false, nil // the server speaks first
	case 2:
		response, err := x.respond(challenge)
		return response, false, err
	}
	got, ok := bytes.CutPrefix(challenge, []byte("rspauth="))
	if !ok || subtle.ConstantTimeCompare(got, []byte(x.want)) != 1 {
		return nil, false, fmt.Errorf("%w: the server does not know the password of %s", ErrAuthFailed, x.user)
	}
	return nil, true, nil
}

func (x *digestExchange) respond(challenge []byte) ([]byte, error) {
	c, err := jute.ParseDirectives(string(challenge))
	if err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	nonce, realm := c["nonce"], c["realm"]
	if nonce == "" || !strings.EqualFold(c["algorithm"], "md5-sess") {
		return nil, errors.New("challenge: no nonce, or an algorithm that is not md5-sess")
	}
	if qop := c["qop"]; qop != "" && !slices.Contains(strings.FieldsFunc(qop, func(r rune) bool { return r == ',' || r == ' ' }), "auth") {
		return nil, fmt.Errorf("challenge: the server wants the quality of protection %q; only \"auth\" is supported", qop)
	}
	response := x.digest("AUTHENTICATE", realm, nonce)
	x.want = x.digest("", realm, nonce)
	var b strings.Builder
	fmt.Fprintf(&b, `charset=utf-8,username=%s,realm=%s,nonce=%s,nc=00000001,cnonce=%s,digest-uri=%s,maxbuf=65536,response=%s,qop=auth`,
		quoteDirective(x.user), quoteDirective(realm), quoteDirective(nonce), quoteDirective(x.cnonce), quoteDirective(jute.DigestURI), response)
	return []byte(b.String()), nil
}

func (x *digestExchange) digest(method, realm, nonce string) string {
	return jute.DigestResponse(method, x.user, realm, x.password, nonce, x.cnonce)
}

func quoteDirective(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
