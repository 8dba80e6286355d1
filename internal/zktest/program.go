package zktest

import (
	"path/filepath"
	"testing"
)

// newer lists the packages of the programs from another Debian release, with the
// libraries that they need.
var newer = []string{
	"nginx", "haproxy", "libc6", "libpcre2-8-0", "libssl3t64", "zlib1g", "libcrypt1", "liblua5.4-0", "libsystemd0", "libcap2",
}

// Program returns the command that runs nginx or haproxy of another Debian release
// with the libraries of that release. Nothing is installed; the packages are
// downloaded once.
func Program(tb testing.TB, release, name string) []string {
	tb.Helper()
	dir := fetchedPackages(tb, release, release+"-programs", newer)
	return []string{
		filepath.Join(dir, "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(dir, "usr/lib/x86_64-linux-gnu"),
		filepath.Join(dir, "usr/sbin", name),
	}
}

// Resolved is the program of systemd-resolved of this machine's release. It is
// unpacked and not installed.
func Resolved(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(fetchedPackages(tb, "bookworm", "resolved", []string{"systemd-resolved"}), "lib/systemd/systemd-resolved")
}
