package view

import (
	"slices"
	"strings"
	"testing"
)

func TestIsName(t *testing.T) {
	for _, s := range []string{"a", "web-1", "10.0.0.1:80", "::1", "a_b.c", "0", strings.Repeat("x", 128)} {
		if !IsName(s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{
		"", ".", "..", "-rf", "a b", "a/b", "x;", "x{", "`id`", "$(id)", `"`, "'", "a\n", "a\x1b[31m", "\u202e", "a\x00", "é", "%[env(X)]", "~x",
		strings.Repeat("x", 129),
	} {
		if IsName(s) {
			t.Errorf("%q is a name", s)
		}
	}
}

func TestCompareHosts(t *testing.T) {
	want := []string{"9.0.0.1", "10.0.0.9", "10.0.0.10", "10.0.0.100", "2001:db8::9", "2001:db8::10", "db-1", "db-10", "db-9"}
	got := slices.SortedFunc(slices.Values([]string{"db-9", "10.0.0.100", "2001:db8::10", "10.0.0.10", "db-10", "9.0.0.1", "2001:db8::9", "db-1", "10.0.0.9"}), CompareHosts)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
