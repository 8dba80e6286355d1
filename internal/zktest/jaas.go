package zktest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// WithSASL returns options of a server with SASL, whose JAAS file has this section.
func WithSASL(tb testing.TB, o Options, section string) Options {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "jaas.conf")
	if err := os.WriteFile(file, []byte(section), 0o600); err != nil {
		tb.Fatal(err)
	}
	// From 3.9.3 on a server is in FIPS mode by default, which excludes DIGEST-MD5.
	o.JVMFlags = append(slices.Clone(o.JVMFlags), "-Djava.security.auth.login.config="+file, "-Dzookeeper.fips-mode=false")
	o.Settings = append(slices.Clone(o.Settings), "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
	return o
}

// DigestSection is a JAAS section with users and their passwords, for the
// mechanism DIGEST-MD5.
func DigestSection(users map[string]string) string {
	var b strings.Builder
	b.WriteString("Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required")
	for _, user := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&b, "\n  user_%s=%q", user, users[user])
	}
	return b.String() + ";\n};\n"
}
