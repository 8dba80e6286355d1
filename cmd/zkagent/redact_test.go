package main

import (
	"strings"
	"testing"
)

func TestRedactor(t *testing.T) {
	r := newRedactor([]string{"agent:hunter2-Q7", "", "x"})
	secrets := []string{
		"hunter2-Q7", "aHVudGVyMi1RNw==", "S3cr3t!", "tok-123456", "MIIBVQIBADANBg", "pem-secret-line", "p4ss", "abcdef0123456789", "heredoc-secret",
	}
	text := `auth { digest = "agent:S3cr3t!" }
data hunter2-Q7 and aHVudGVyMi1RNw==
api_token: tok-123456
"db_password": "S3cr3t!\" more S3cr3t!"
url = "https://user:p4ss@example.org/path"
Authorization: Bearer abcdef0123456789
-----BEGIN PRIVATE KEY-----
MIIBVQIBADANBg
-----END PRIVATE KEY-----
digest:agent:S3cr3t!
my_secret = <<EOT
heredoc-secret
EOT
db_secret = <<-"EOT2"
client_secret=pem-secret-line
port = 8080
`
	got := r.text(text)
	for _, s := range secrets {
		if strings.Contains(got, s) {
			t.Errorf("%q is left in:\n%s", s, got)
		}
	}
	for _, keep := range []string{"port = 8080", "https://user:", "@example.org/path", "BEGIN PRIVATE KEY"} {
		if !strings.Contains(got, keep) {
			t.Errorf("%q is gone from:\n%s", keep, got)
		}
	}
}
