package jute

import "testing"

func TestParseDirectives(t *testing.T) {
	t.Parallel()
	got, err := ParseDirectives(`realm="zk-sasl-md5",nonce="a\"b\\c",qop="auth, auth-int",charset=utf-8 , algorithm=md5-sess`)
	if err != nil || got["realm"] != "zk-sasl-md5" || got["nonce"] != `a"b\c` || got["qop"] != "auth, auth-int" || got["charset"] != "utf-8" || got["algorithm"] != "md5-sess" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"x", `realm="a`, `realm="a=b`, `nonce="a\`, "=,,=\"" + `\`} {
		if got, err := ParseDirectives(bad); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}
