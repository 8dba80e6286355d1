package dns

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// label matches what can stand as one label (RFC 1035, 2.3.4).
var label = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// IsLabel reports whether a name can stand as one label: 1 to 63 letters,
// digits, "-" and "_", not starting or ending with "-". Case does not matter.
func IsLabel(name string) bool { return label.MatchString(name) }

// unreadable are the characters that the readable part of a label does not have.
var unreadable = regexp.MustCompile(`[^a-z0-9-]`)

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
	readable := unreadable.ReplaceAllString(lower, "-")
	readable = strings.Trim(readable[:min(len(readable), 50)], "-")
	return cmp.Or(readable, "member") + "-" + hex.EncodeToString(sum[:5])
}
