package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
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

// TestRedactor_Encodings: a known secret is found in every encoding, and one that
// settings hold is found where its name is not beside it.
func TestRedactor_Encodings(t *testing.T) {
	const secret = `p<a>&"s's\w/0 rd`
	r := newRedactor([]string{"user:" + secret})
	for _, text := range []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), html.EscapeString(secret), fmt.Sprintf("%q", secret), fmt.Sprintf("%x", secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), string(jsonOf(t, secret)), string(jsonOf(t, string(jsonOf(t, secret)))),
	} {
		if got := r.text("x " + text + " y"); strings.Contains(got, "w/0") || strings.Contains(got, text) {
			t.Errorf("%s: got %s", text, got)
		}
	}
	r.learn(`check "http" { headers = { "X-Api-Key" = "abcdef123456" } }
command = ["deploy", "--password", "tuvwxyz98", "-u", "me:hunter22"]`)
	for _, text := range []string{
		`GET /?q=abcdef123456`, `argv: tuvwxyz98`, `["curl","-u","me:hunter22"]`, `--token zzzzzz`, `https://h/x?sig=AbC123`,
	} {
		if got := r.text(text); !strings.Contains(got, redacted) {
			t.Errorf("%s: got %s", text, got)
		}
	}
	if plain := "command = [nginx -t] listen 127.0.0.1:80"; r.text(plain) != plain {
		t.Errorf("got %s", r.text(plain))
	}
}

func jsonOf(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
