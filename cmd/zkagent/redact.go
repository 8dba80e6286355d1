package main

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// redacted stands where a secret was.
const redacted = "(secret)"

// redactor takes secrets out of texts: those that are known, wherever they
// stand, and what looks like one. It takes out too much rather than too little.
type redactor struct{ known []string }

// minRedact is the length below which a known secret is not looked for: it
// would be found everywhere.
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
			r.known = append(r.known, part, base64.StdEncoding.EncodeToString([]byte(part)), url.QueryEscape(part))
		}
	}
	// The longest first: a secret may be a part of another.
	slices.SortFunc(r.known, func(a, b string) int { return len(b) - len(a) })
	r.known = slices.Compact(r.known)
	return r
}

// patterns are what looks like a secret; the first group stays.
var patterns = []*regexp.Regexp{
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z0-9 ]*-----).*?-----END [A-Z0-9 ]*-----`),
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@"']*:)[^\s/@"']+(@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{6,}`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)"(?:[^"\\]|\\.)*"`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)[^\s"'{\[(),;]+`),
	regexp.MustCompile(`(?i)(\b(?:super|digest|sasl|auth):[a-z0-9_.-]+:)[^\s"',;]+`),
}

// heredoc is a text of several lines in settings whose name looks secret.
var heredoc = regexp.MustCompile(`(?ims)((?:passw(?:or)?d|secret|token|credential|private_key|key_pem)[a-z0-9_]*\s*=\s*<<[-~]?\s*)([A-Z0-9_]+)\n.*?\n\s*\b[A-Z0-9_]+\b`)

// text returns s without secrets.
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
