package dns

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxLabel is the most that one label of a name holds (RFC 1035, 2.3.4).
const maxLabel = 63

// IsLabel reports whether a name can stand as one label: 1 to 63 letters,
// digits, "-" and "_", not starting or ending with "-". Case does not matter.
func IsLabel(name string) bool {
	if name == "" || len(name) > maxLabel || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		if !labelByte(c) {
			return false
		}
	}
	return true
}

func labelByte[C byte | rune](c C) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// digested matches a label that ends as those with a digest do.
var digested = regexp.MustCompile(`-[0-9a-f]{10}$`)

// NodeLabel returns the label of a member below "node". An id that is a valid label in
// lower case is its own label. Any other id becomes a readable part and a digest: one
// with upper case, and one that ends like a digest, too. So two ids do not share a label.
func NodeLabel(id string) string {
	lower := strings.ToLower(id)
	if IsLabel(id) && id == lower && !digested.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	readable := strings.Map(func(r rune) rune {
		if labelByte(r) && r != '_' {
			return r
		}
		return '-'
	}, lower)
	readable = strings.Trim(readable[:min(len(readable), 50)], "-")
	return cmp.Or(readable, "member") + "-" + hex.EncodeToString(sum[:5])
}
