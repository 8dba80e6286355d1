package session

import (
	"bytes"
	"crypto/md5" //nolint:gosec // DIGEST-MD5 is what servers speak; the docs say what it is worth
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// digestURI is the name of every ZooKeeper server in DIGEST-MD5: "zookeeper" is the
// service, and the rest stands for the host, whatever its real name.
const digestURI = "zookeeper/zk-sasl-md5"

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
	c, err := parseDirectives(string(challenge))
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
		quoteDirective(x.user), quoteDirective(realm), quoteDirective(nonce), quoteDirective(x.cnonce), quoteDirective(digestURI), response)
	return []byte(b.String()), nil
}

// digest is response-value of RFC 2831, 2.1.2.1.
func (x *digestExchange) digest(method, realm, nonce string) string {
	secret := string(md5Of(x.user + ":" + realm + ":" + x.password))
	a1 := hex.EncodeToString(md5Of(secret + ":" + nonce + ":" + x.cnonce))
	a2 := hex.EncodeToString(md5Of(method + ":" + digestURI))
	return hex.EncodeToString(md5Of(a1 + ":" + nonce + ":00000001:" + x.cnonce + ":auth:" + a2))
}

func md5Of(s string) []byte {
	sum := md5.Sum([]byte(s)) //nolint:gosec // see the import
	return sum[:]
}

func quoteDirective(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// parseDirectives reads name=value pairs that are separated by commas. Values may be
// quoted. If a name comes twice, the first counts.
func parseDirectives(s string) (map[string]string, error) {
	found := map[string]string{}
	for s = strings.TrimLeft(s, ", \t\r\n"); s != ""; s = strings.TrimLeft(s, ", \t\r\n") {
		name, rest, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("%.20q is no directive", s)
		}
		value, rest, err := directiveValue(strings.TrimLeft(rest, " \t"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(name), err)
		}
		if name = strings.ToLower(strings.TrimSpace(name)); found[name] == "" {
			found[name] = value
		}
		s = rest
	}
	return found, nil
}

func directiveValue(s string) (value, rest string, err error) { //nolint:nonamedreturns // two strings need names
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ",")
		return strings.TrimSpace(value), rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				break
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", errors.New("a quote is not closed")
}
