package settings

import (
	"io/fs"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1500ms": 1500 * time.Millisecond, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "0.5d": 12 * time.Hour,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "ten", "10 parsecs", "d", "1e9d", "NaNd"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: got %s and no error", text, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "512": 512, "1k": 1024, "2 MiB": 2 << 20, "1GB": 1 << 30, "7b": 7} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5M", "many", "9999999999GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: got %d and no error", text, got)
		}
	}
}

func TestParseMode(t *testing.T) {
	for text, want := range map[string]fs.FileMode{"0644": 0o644, "600": 0o600, "0o755": 0o755} {
		if got, err := parseMode(text); err != nil || got != want {
			t.Errorf("%q: got %o, %v, want %o", text, got, err, want)
		}
	}
	for _, text := range []string{"", "rw-r--r--", "0888", "4755", "77777"} {
		if got, err := parseMode(text); err == nil {
			t.Errorf("%q: got %o and no error", text, got)
		}
	}
}

func TestParsePercent(t *testing.T) {
	for text, want := range map[string]float64{"30%": 0.3, "100 %": 1, "0%": 0, "12.5%": 0.125} {
		if got, err := parsePercent(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "101%", "-1%", "NaN%", "%"} {
		if got, err := parsePercent(text); err == nil {
			t.Errorf("%q: got %v and no error", text, got)
		}
	}
}

func TestCheckers(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func(string) error
		good  []string
		bad   []string
	}{
		{"znode", checkZnode, []string{"/", "/a/b", "/a/b-c.d"}, []string{"", "a", "/a/", "//a", "/a/../b", "/a/.", "/a\x00", "/\ufffe"}},
		{"host", checkHost, []string{"a", "10.0.0.1", "::1", "[::1]", "a.example.", "a_b"}, []string{"", "a b", "-a", "a..b", "a/b", "x;y"}},
		{"server", checkServer, []string{"zk1", "zk1:2181", "[::1]:2181"}, []string{"zk1:0", "zk1:x", "a:1,b:2", "zk1:2181/chroot", "zk1:99999"}},
		{"listen", checkListen, []string{":8558", "127.0.0.1:0", "[::1]:1"}, []string{"8558", "127.0.0.1", "a:b"}},
		{"url", checkURL, []string{"http://a/x", "https://[::1]:8443/"}, []string{"a", "ftp://a", "http://", "http:///x"}},
		{"permits", forms["permits"].check, []string{"1", "10%", "100%"}, []string{"", "0", "0%", "200%", "x"}},
		{"id", checkID, []string{"web-1"}, []string{"a/b", "a b", "..", strings.Repeat("x", 129)}},
		{"label", checkLabel, []string{"web", "web.v2", "a-b_c"}, []string{"", "a/b", "a b", "..", `a"b`}},
	} {
		for _, text := range c.good {
			if err := c.check(text); err != nil {
				t.Errorf("%s: %q: got %v", c.name, text, err)
			}
		}
		for _, text := range c.bad {
			if c.check(text) == nil {
				t.Errorf("%s: %q: got no error", c.name, text)
			}
		}
	}
}

func TestDidYouMean(t *testing.T) {
	if got, want := didYouMean("kep", []string{"keep", "render"}), ` Did you mean "keep"?`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := didYouMean("zebra", []string{"keep", "render"}); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}
