package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

func TestParseServers(t *testing.T) {
	cases := []struct{ in, servers, chroot, err string }{
		{"a", "a:2181", "", ""},
		{"a:1,b:2/x/y", "a:1 b:2", "/x/y", ""},
		{" a , b ,", "a:2181 b:2181", "", ""},
		{"[::1],::1", "[::1]:2181 [::1]:2181", "", ""},
		{"a/", "a:2181", "", ""},
		{"", "", "", "no server"},
		{"/x", "", "", "no server"},
		{"a:x", "", "", "port x is not in 1-65535"},
		{"a:0", "", "", "port 0 is not in 1-65535"},
		{"a:1:2", "", "", "too many colons"},
		{"a//b", "", "", "chroot"},
	}
	for _, c := range cases {
		servers, chroot, err := ParseServers(c.in)
		if got := strings.Join(servers, " "); got != c.servers || chroot != c.chroot {
			t.Errorf("%q: got %q %q", c.in, got, chroot)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: got error %v, want %q in it", c.in, err, c.err)
		}
	}
}

func TestParseACL(t *testing.T) {
	for in, want := range map[string]string{
		"world:anyone:r": "world:anyone:r", "auth::cdrwa": "auth::cdrwa", "digest:ann:2jmj7l5rSw0yVb/vlWAYkK/YBwk=:wr": "digest:ann:2jmj7l5rSw0yVb/vlWAYkK/YBwk=:rw",
		"world:me:r": "", "world:anyone": "", "ip:1.2.3.4:x": "", ":a:r": "", "auth::": "", "": "",
	} {
		a, err := ParseACL(in)
		if (err == nil) != (want != "") || err == nil && FormatACL(a) != want {
			t.Errorf("%q: got %q %v, want %q", in, FormatACL(a), err, want)
		}
	}
}

// A digest that is no hash matches nobody. The error says how to make the hash, and
// does not show what may be a password.
func TestParseACL_DigestThatIsNoHash(t *testing.T) {
	for _, in := range []string{
		"digest:ann:secret:cdrwa", "digest:ann:secret", "digest:ann:c2VjcmV0:r", "digest:ann:MmptajdsNXJTdzB5VmIvdmxXQVlrSy9ZQndr:r",
		"digest:ann:2jmj7l5rSw0yVb/vlWAYkK/YBwl=:r", "digest::2jmj7l5rSw0yVb/vlWAYkK/YBwk=:r", "digest:ann:r", "digest:ann:2jmj7l5rSw0yVb/vlWAYkK/YBwk=:secret",
	} {
		_, err := ParseACL(in)
		if err == nil {
			t.Errorf("%s is accepted", in)
			continue
		}
		if text := err.Error(); strings.Contains(text, "secret") || strings.Contains(text, "2jmj") {
			t.Errorf("%s: shown in %q", in, text)
		}
	}
	if _, err := ParseACL("digest:ann:secret:cdrwa"); !strings.Contains(err.Error(), "openssl dgst -sha1 -binary | base64") {
		t.Error(err)
	}
}

func TestValidatePath(t *testing.T) {
	for _, p := range []string{"/", "/a", "/a/b.c", "/ä", "/a b", "/..."} {
		if err := ValidatePath(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"", "a", "/a/", "//a", "/a/../b", "/.", "/a\x00", "/a\x7f", "/\ue000", "/\ufff0", "/\U0001f600", "/\xff"} {
		if err := ValidatePath(p); !errors.Is(err, ErrBadPath) {
			t.Errorf("%q: got %v, want ErrBadPath", p, err)
		}
	}
}

func TestPaths(t *testing.T) {
	for _, c := range [][]string{{"/", "/"}, {"/a/b", "/a", "b"}, {"/a", "/", "a"}, {"/a", "/a", ""}, {"/a/b/c", "a/", "/b/c"}} {
		if got := JoinPath(c[1:]...); got != c[0] {
			t.Errorf("%q: got %q, want %q", c[1:], got, c[0])
		}
	}
	if d, n := SplitPath("/a/b"); d != "/a" || n != "b" {
		t.Error(d, n)
	}
	if d, n := SplitPath("/a"); d != "/" || n != "a" {
		t.Error(d, n)
	}
	for _, c := range []struct{ chroot, path, full string }{{"", "/a", "/a"}, {"/r", "/a", "/r/a"}, {"/r", "/", "/r"}} {
		if got := full(c.chroot, c.path); got != c.full {
			t.Errorf("got %q, want %q", got, c.full)
		}
		if got := strip(c.chroot, c.full); got != c.path {
			t.Errorf("got %q, want %q", got, c.path)
		}
	}
}

func TestErrors(t *testing.T) {
	err := error(&Error{Op: "multi", Err: &MultiError{Index: 2, Path: "/x", Err: codeError(jute.ErrCodeQuotaExceeded)}})
	if !errors.Is(err, ErrQuota) || ActionFor(err) != GiveUp || ActionFor(ErrNoNode) == GiveUp || ActionFor(nil) == GiveUp {
		t.Error(err)
	}
	if got, want := err.Error(), "multi: operation 2 on /x: quota exceeded"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if codeError(0) != nil || codeError(-42).Error() != "server answered error -42" {
		t.Error(codeError(-42))
	}
}

func TestConfig_Complete(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no servers":  {},
		"bad server":  {Servers: []string{"a:b"}},
		"bad chroot":  {Servers: []string{"a"}, Chroot: "x"},
		"bad timeout": {Servers: []string{"a"}, Timeout: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	m, err := New(Config{Servers: []string{"a"}, Auth: []Auth{{"digest", nil}}})
	if err != nil {
		t.Fatal(err)
	}
	acl := newSession(t.Context(), m.cfg).acl()
	if got := FormatACL(acl[0]) + " " + FormatACL(acl[1]); got != "world:anyone:r auth::cdrwa" {
		t.Errorf("acl %s", got)
	}
}

// An event closes the watches of finished reads and of reads under way: it is unknown
// whether a request on its way sets its watch before or after the event.
func TestWatchBook(t *testing.T) {
	b := &watchBook{met: noMetrics{}, t: watchTable{}}
	all := func() []*Watch {
		var ws []*Watch
		for _, k := range []watchKind{watchData, watchExists, watchChild} {
			for _, armed := range []bool{true, false} {
				w, _ := b.begin(nil, "/a", k.set())
				if armed {
					code := jute.ErrCodeOK
					if k == watchExists {
						code = jute.ErrCodeNoNode
					}
					b.settle(nil, w, code, 0)
				}
				ws = append(ws, w)
			}
		}
		return ws
	}
	for event, want := range map[int32]string{
		jute.EventCreated: "xxxx..", jute.EventDataChanged: "xxxx..", jute.EventChildrenChanged: "....xx", jute.EventDeleted: "xxxxxx", jute.EventNone: "......",
	} {
		ws := all()
		b.fire(event, "/b")
		b.fire(event, "/a")
		got := ""
		for _, w := range ws {
			if closed(w.C()) {
				got += "x"
			} else {
				got += "."
			}
			w.Stop()
			w.Stop()
		}
		if got != want {
			t.Errorf("event %d: got %s, want %s", event, got, want)
		}
		if n := b.len(); n != 0 {
			t.Errorf("%d watches left", n)
		}
	}
}

func TestRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		s := dialMem(t, memConfig(srv))
		for range 3 {
			if _, _, err := s.Get(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Requests()["getData"]; got != 3 {
			t.Errorf("got %d requests, want 3", got)
		}
		time.Sleep(time.Minute)
		if got := len(s.Requests()); got != 1 {
			t.Errorf("requests %v", s.Requests())
		}
		_ = s.Close()
	})
}

func TestActionFor(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Action
	}{
		{nil, Decide},
		{errors.New("of the caller"), Decide},
		{context.Canceled, Decide},
		{&Error{Op: "setData", Path: "/x", Err: ErrBadVersion}, Decide},
		{&Error{Op: "setData", Path: "/x", Err: ErrUnknown}, Retry},
		{fmt.Errorf("put: %w", ErrThrottled), Retry},
		{&Error{Op: "create2", Path: "/x", Err: ErrExpired}, NewSession},
		{errors.Join(ErrUnknown, ErrExpired), NewSession},
		{ErrReadOnly, NewSession},
		{&Error{Op: "create2", Path: "/x", Err: ErrNoAuth}, GiveUp},
		{errors.Join(ErrNoServer, ErrAuthFailed), GiveUp},
	} {
		if got := ActionFor(test.err); got != test.want {
			t.Errorf("%v: action %d, want %d", test.err, got, test.want)
		}
	}
}
