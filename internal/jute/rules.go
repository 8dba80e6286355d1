package jute

import (
	"crypto/md5"  //nolint:gosec // DIGEST-MD5 is defined with it
	"crypto/sha1" //nolint:gosec // the scheme digest is defined with it
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// CheckPath returns why ZooKeeper does not accept a path. A path is absolute, has no slash at
// the end, no empty, "." or ".." element, and no control or private-use characters.
func CheckPath(path string) error {
	switch {
	case path == "/":
		return nil
	case path == "":
		return errors.New("empty")
	case path[0] != '/':
		return fmt.Errorf("%q is not absolute; znode paths begin with a slash", path)
	case path[len(path)-1] == '/':
		return fmt.Errorf("%q ends with a slash", path)
	case !utf8.ValidString(path):
		return fmt.Errorf("%q is not UTF-8", path)
	}
	for e := range strings.SplitSeq(path[1:], "/") {
		switch e {
		case "":
			return fmt.Errorf("%q has an empty element", path)
		case ".", "..":
			return fmt.Errorf("%q has the element %q, which ZooKeeper does not allow", path, e)
		}
	}
	for _, r := range path {
		// Java sees characters beyond the basic plane as surrogates, which are refused too.
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return fmt.Errorf("%q has the character %U, which ZooKeeper does not allow", path, r)
		}
	}
	return nil
}

// IsCreate reports whether an operation creates a znode.
func IsCreate(op int32) bool {
	return op == OpCreate || op == OpCreate2 || op == OpCreateContainer || op == OpCreateTTL
}

// Digest returns the id of the scheme digest for "user:password".
func Digest(credential string) string {
	user, _, _ := strings.Cut(credential, ":")
	sum := sha1.Sum([]byte(credential)) //nolint:gosec // see the import
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// DigestURI is the name of every ZooKeeper server in SASL DIGEST-MD5: "zookeeper" is the
// service, and the rest stands for the host, whatever its real name.
const DigestURI = "zookeeper/zk-sasl-md5"

// DigestResponse is response-value of RFC 2831, 2.1.2.1, for the first use of a nonce with
// the quality of protection "auth". The method is AUTHENTICATE for the client's proof, and
// empty for the server's.
func DigestResponse(method, user, realm, password, nonce, cnonce string) string {
	sum := func(s string) string {
		h := md5.Sum([]byte(s)) //nolint:gosec // see the import
		return string(h[:])
	}
	hexSum := func(s string) string { return hex.EncodeToString([]byte(sum(s))) }
	a1 := hexSum(sum(latin1(user)+":"+latin1(realm)+":"+latin1(password)) + ":" + nonce + ":" + cnonce)
	return hexSum(a1 + ":" + nonce + ":00000001:" + cnonce + ":auth:" + hexSum(method+":"+DigestURI))
}

// latin1 returns a text in ISO 8859-1 if it has no other characters: the RFC hashes it so.
func latin1(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return s
		}
		b = append(b, byte(r)) //nolint:gosec // at most 0xff
	}
	return string(b)
}

var (
	directive = regexp.MustCompile(`(?s)^([^="]*)=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^",][^,]*)?)`)
	escaped   = regexp.MustCompile(`(?s)\\(.)`)
)

// ParseDirectives reads name=value pairs that are separated by commas, as DIGEST-MD5 has
// them. Values may be quoted. If a name comes twice, the first counts.
func ParseDirectives(s string) (map[string]string, error) {
	const between = ", \t\r\n"
	found := map[string]string{}
	for s = strings.TrimLeft(s, between); s != ""; s = strings.TrimLeft(s, between) {
		match := directive.FindStringSubmatch(s)
		if match == nil {
			return nil, fmt.Errorf("%.20q is not a directive", s)
		}
		if name := strings.ToLower(strings.TrimSpace(match[1])); found[name] == "" {
			found[name] = escaped.ReplaceAllString(match[2], "$1") + strings.TrimSpace(match[3])
		}
		s = s[len(match[0]):]
	}
	return found, nil
}
