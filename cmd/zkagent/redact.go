package main

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const redacted = "(secret)"

// redactor removes secrets from texts: known secrets anywhere, and text that looks
// like a secret. It prefers to remove too much.
type redactor struct{ known []string }

// minRedact is the least length of a known secret to search for. A shorter one
// would match everywhere.
const minRedact = 3

// newRedactor returns a redactor for secrets that are known to us. Parts of
// "user:password", and the forms in which they may be encoded, are known, too.
func newRedactor(secrets []string) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		for _, part := range append(strings.Split(s, ":")[1:], s) {
			part = strings.TrimSpace(part)
			if len(part) < minRedact {
				continue
			}
			r.know(part)
		}
	}
	r.sort()
	return r
}

// know adds a secret in every encoding in which the files of an archive hold
// values: JSON with and without HTML escapes, Go and HCL quotes, base64, hex,
// parts of URLs, HTML.
func (r *redactor) know(secret string) {
	b := []byte(secret)
	escaped, _ := json.Marshal(secret) // A text is always JSON.
	r.known = append(
		r.known, secret, url.QueryEscape(secret), url.PathEscape(secret), lowerPercent(url.QueryEscape(secret)), lowerPercent(url.PathEscape(secret)),
		html.EscapeString(secret),
		strings.Trim(string(escaped), `"`), strings.Trim(strconv.Quote(secret), `"`), strings.Trim(strconv.QuoteToASCII(secret), `"`),
		base64.StdEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b),
		hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)),
	)
	if inner := strings.Trim(string(escaped), `"`); inner != secret { // JSON within JSON.
		twice, _ := json.Marshal(inner)
		r.known = append(r.known, strings.Trim(string(twice), `"`))
	}
}

// percent is an escaped byte of a URL.
var percent = regexp.MustCompile(`%[0-9A-F]{2}`)

// lowerPercent is a part of a URL with the escapes as some programs write them.
func lowerPercent(s string) string { return percent.ReplaceAllStringFunc(s, strings.ToLower) }

// sort puts the longest first: a secret may be a part of another.
func (r *redactor) sort() {
	slices.SortFunc(r.known, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	r.known = slices.Compact(r.known)
}

// minLearned is the least length of a value that looks like a secret to search for
// elsewhere.
const minLearned = 6

// learn adds the values in a text that look like secrets, because they may also
// occur without their name: in headers, query strings, arguments.
func (r *redactor) learn(text string) {
	for _, p := range patterns {
		for _, m := range p.FindAllStringSubmatchIndex(text, -1) {
			end := m[1]
			if len(m) > 4 {
				end = m[4]
			}
			value := strings.Trim(text[m[3]:end], `"' `)
			if unquoted, err := strconv.Unquote(`"` + value + `"`); err == nil {
				value = unquoted
			}
			if len(value) >= minLearned && !strings.Contains(value, "(") && !strings.ContainsAny(value, "\n") && value != "(secret)" {
				r.know(value)
			}
		}
	}
	r.sort()
}

// patterns match text that looks like a secret. The first group stays.
var patterns = []*regexp.Regexp{
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z0-9 ]*-----).*?-----END [A-Z0-9 ]*-----`),
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@"']*:)[^\s/@"']+(@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{6,}`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)"(?:[^"\\]|\\.)*"`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)[^\s"'{\[(),;]+`),
	regexp.MustCompile(`(?i)("?--?[a-z-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api-?key)[a-z-]*"?(?:\s*,\s*|\s+))"(?:[^"\\]|\\.)*"`),
	regexp.MustCompile(`(?i)(--?[a-z-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api-?key)[a-z-]*\s+)[^\s"',;]+`),
	regexp.MustCompile(`(?i)("(?:-u|--user)"\s*,\s*"[^":]*:)[^"]+`),
	regexp.MustCompile(`(?i)([?&](?:sig|signature|key|sas|code)=)[^\s"'&#]+`),
	regexp.MustCompile(`(?i)(\b(?:super|digest|sasl|auth):[a-z0-9_.-]+:)[^\s"',;]+`),
}

// heredoc is a text of several lines in settings whose name looks secret.
var heredoc = regexp.MustCompile(`(?ims)((?:passw(?:or)?d|secret|token|credential|private_key|key_pem)[a-z0-9_]*\s*=\s*<<[-~]?\s*)([A-Z0-9_]+)\n.*?\n\s*\b[A-Z0-9_]+\b`)

func (r *redactor) text(s string) string {
	for _, k := range r.known {
		s = strings.ReplaceAll(s, k, redacted)
	}
	s = heredoc.ReplaceAllString(s, "${1}"+redacted)
	for _, p := range patterns {
		with := "${1}" + redacted
		if p.NumSubexp() > 1 {
			with += "${2}"
		}
		s = p.ReplaceAllString(s, with)
	}
	return s
}
