package session

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

func FuzzDigestMD5(f *testing.F) {
	f.Add(`realm="zk-sasl-md5",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess`)
	f.Fuzz(func(_ *testing.T, challenge string) {
		x, _ := DigestMD5("u", "p").Begin("h")
		_, _, _ = x.Step(nil)
		_, _, _ = x.Step([]byte(challenge))
		_, _, _ = x.Step([]byte(challenge))
	})
}

// A real server accepts the identity on the first connection and on the next, and its
// ACLs use it. A wrong password and a server without SASL give different errors.
func TestDigestMD5_RealServer(t *testing.T) {
	t.Parallel()
	o := zktest.WithSASL(t, zktest.Options{}, zktest.DigestSection(map[string]string{"agent": `se"c\ret`, "other": "x"}))
	server := zktest.Start(t, o)
	proxy := zktest.NewProxy(t, server.Addr())
	cfg := Config{Servers: []string{proxy.Addr()}, Timeout: 10 * time.Second, SASL: DigestMD5("agent", `se"c\ret`)}
	s, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	only := ACL{Perms: PermAll, Scheme: "sasl", ID: "agent"}
	if _, _, err := s.Create(t.Context(), "/secret", []byte("v"), Persistent, only); err != nil {
		t.Fatal(err)
	}
	proxy.DropConnections()
	if data, _, err := s.Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
		t.Errorf("over the next connection: %q, %v", data, err)
	}
	cfg.SASL = DigestMD5("other", "x")
	other, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, _, err := other.Get(t.Context(), "/secret"); !errors.Is(err, ErrNoAuth) {
		t.Errorf("another identity: %v", err)
	}
	for _, user := range []string{"agent", "nobody"} {
		cfg.SASL = DigestMD5(user, "wrong")
		if _, err := Dial(t.Context(), cfg); !errors.Is(err, ErrAuthFailed) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s with a wrong password: %v", user, err)
		}
	}
}

// RFC 2831 hashes a text in ISO 8859-1 when it has no other characters, and else in UTF-8.
func TestDigestMD5_Charsets(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	users := map[string]string{"agent": "p\u00e4ssw\u00f6rt", "\u00fcser": "plain", "wide": "\u20ac5 \u00fc"}
	o := zktest.WithSASL(t, zktest.Options{}, zktest.DigestSection(users))
	o.JVMFlags = append(o.JVMFlags, "-Dfile.encoding=UTF-8") // of the JAAS file
	server := zktest.Start(t, o)
	for user, password := range users {
		s, err := Dial(t.Context(), Config{Servers: []string{server.Addr()}, Timeout: 10 * time.Second, SASL: DigestMD5(user, password)})
		if err != nil {
			t.Errorf("%s %s: %v", user, password, err)
			continue
		}
		_ = s.Close()
	}
}

func TestDigestMD5_ServerWithoutSASL(t *testing.T) {
	t.Parallel()
	_, err := Dial(t.Context(), Config{Servers: []string{zktest.Shared(t).Addr()}, Timeout: 10 * time.Second, SASL: DigestMD5("agent", "x")})
	if !errors.Is(err, ErrAuthFailed) || !errors.Is(err, errNoSASL) {
		t.Errorf("got %v", err)
	}
}
