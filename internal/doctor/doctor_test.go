package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// readOnly lets everybody read, and one identity change everything.
var readOnly = []jute.ACL{
	{Perms: session.PermRead, Scheme: "world", ID: "anyone"},
	{Perms: session.PermAll, Scheme: "digest", ID: "other:hash"},
}

// closed lets one identity read, and no other.
var closed = readOnly[1:]

// doctorBed is a ZooKeeper with settings of an agent beside it.
func doctorBed(t *testing.T, auth string, znodes map[string][]jute.ACL) string {
	t.Helper()
	return doctorBedWith(t, memzk.Options{}, auth, znodes)
}

func doctorBedWith(t *testing.T, opts memzk.Options, auth string, znodes map[string][]jute.ACL) string {
	t.Helper()
	server := memzk.New(opts)
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/services", "/config"} {
		if err := server.Create(p, nil); err != nil {
			t.Fatal(err)
		}
	}
	for p, acl := range znodes {
		if err := server.CreateWith(p, nil, 0, acl); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "z.hcl")
	text := `zookeeper {
  servers = ["` + addr.String() + `"]
  ` + auth + `
}
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 80
}
config "web" { path = "/config/web" }
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// limit bounds each question.
const limit = 10 * time.Second

// findings runs the doctor with the settings of a file.
func findings(t *testing.T, file string) []Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	list, _ := Examine(ctx, &Options{
		Paths: []string{file}, Env: os.LookupEnv, Wait: limit, Version: "test",
		Socket: func() (string, error) { return filepath.Join(t.TempDir(), "none"), nil },
		ZooKeeper: func(c *agent.Config) (session.Config, error) {
			if c == nil {
				return session.Config{}, errors.New("no settings")
			}
			return c.ZooKeeper, nil
		},
	})
	return list
}

// failed reports whether a finding fails.
func failed(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Level == LevelFail })
}

// TestOpenZnodes finds what everybody may change anywhere below a path, within
// its limit, and passes over what it may not read.
func TestOpenZnodes(t *testing.T) {
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	everyIP := []jute.ACL{{Perms: session.PermRead | session.PermWrite, Scheme: "ip", ID: "0.0.0.0/0"}}
	for _, z := range []struct {
		path string
		acl  []jute.ACL
	}{
		{"/a", readOnly},
		{"/a/closed", closed},
		{"/a/closed/open", nil},
		{"/a/read", readOnly},
		{"/a/read/deep", readOnly},
		{"/a/read/deep/open", nil},
		{"/a/read/ip", everyIP},
		{"/b", nil},
	} {
		if err := server.CreateWith(z.path, nil, 0, z.acl); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := session.Dial(ctx, session.Config{Servers: []string{addr.String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		limit, looked int
		want          string
	}{
		{100, 6, "/a/read/ip 2 /a/read/deep/open 30 "},
		{5, 5, "/a/read/ip 2 "},
		{1, 1, ""},
	} {
		open, looked, err := OpenZnodes(ctx, s, "/a", c.limit)
		got := ""
		for _, z := range open {
			got += fmt.Sprintf("%s %d ", z.Path, z.Perms)
		}
		if err != nil || got != c.want || looked != c.looked {
			t.Errorf("limit %d: got %q of %d, %v; want %q of %d", c.limit, got, looked, err, c.want, c.looked)
		}
	}
}

func TestDoctor_ACLs(t *testing.T) {
	const auth = `auth "digest" { credential = "agent:pw" }`
	cases := []struct {
		name, auth         string
		znodes             map[string][]jute.ACL
		level, check, text string
		hint               string
	}{
		{
			"no identity may register", "",
			map[string][]jute.ACL{"/services/web": readOnly},
			LevelFail, "acl", "none of the identities", "permission c",
		},
		{
			"somebody else may register", auth,
			map[string][]jute.ACL{"/services/web": readOnly},
			LevelFail, "acl", "none of the identities", "zkagent zk acl /services/web",
		},
		{
			"a config that may not be read", "",
			map[string][]jute.ACL{"/config/web": closed},
			LevelFail, "znode", "/config/web", "credentials do not fit",
		},
		{
			"a config that everybody may change", "",
			map[string][]jute.ACL{"/config/web": nil},
			LevelWarn, "acl", "everybody may change /config/web (cdwa)", "once an auth block",
		},
		{
			"the agent's own znodes", "",
			map[string][]jute.ACL{"/zkagent": readOnly},
			LevelFail, "write", "/zkagent/doctor-", "status, locks",
		},
		{
			"a group that does not exist yet", "", nil,
			LevelOK, "znode", "creates it when it needs it", "",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			list := findings(t, doctorBed(t, c.auth, c.znodes))
			if failed(list) != (c.level == LevelFail) {
				t.Errorf("failed is %v for the level %s", failed(list), c.level)
			}
			if !slices.ContainsFunc(list, func(f Finding) bool {
				return f.Level == c.level && f.Check == c.check && strings.Contains(f.Text, c.text) && strings.Contains(f.Hint, c.hint)
			}) {
				t.Errorf("no %s %s with %q and the hint %q in %+v", c.level, c.check, c.text, c.hint, list)
			}
		})
	}
}

// TestDoctor_MissingCredential: what cannot be had outside of the unit is told,
// and the rest looked at.
// A server that is too old is named by its version, or by what it refuses.
func TestDoctor_OldServer(t *testing.T) {
	for words, opts := range map[string]memzk.Options{
		"3.4.13":                   {Version: "3.4"},
		"older than ZooKeeper 3.5": {Version: "3.4", NoWords: true},
		"":                         {Version: "3.5", NoWords: true},
	} {
		old := func(f Finding) bool {
			return f.Check == "server" && f.Level == LevelFail && strings.Contains(f.Text, "the least version")
		}
		list := findings(t, doctorBedWith(t, opts, "", nil))
		i := slices.IndexFunc(list, old)
		if (i >= 0) != (words != "") || i >= 0 && !strings.Contains(list[i].Text, words) {
			t.Errorf("%+v: %+v", opts, list)
		}
	}
}

func TestDoctor_MissingCredential(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", t.TempDir())
	list := findings(t, doctorBed(t, `auth "digest" { credential = credential("zk-auth") }`, nil))
	if !failed(list) {
		t.Error("no failure")
	}
	for _, want := range []Finding{{Level: LevelFail, Check: "settings"}, {Level: LevelOK, Check: "server"}} {
		if !slices.ContainsFunc(list, func(f Finding) bool { return f.Level == want.Level && f.Check == want.Check }) {
			t.Errorf("no %s %s in %+v", want.Level, want.Check, list)
		}
	}
}

func TestDoctor_Destination(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dest, level, text string }{
		{filepath.Join(dir, "a.conf"), LevelOK, "can be written"},
		{filepath.Join(dir, "none", "a.conf"), LevelFail, "no such file"},
		{filepath.Join(file, "a.conf"), LevelFail, "not a directory"},
		{"/proc/a.conf", LevelFail, "/proc"},
	} {
		d := &doctor{}
		d.destination("template web", files.File{Destination: c.dest})
		if got := d.list[len(d.list)-1]; len(d.list) != 1 || got.Level != c.level || !strings.Contains(got.Text, c.text) {
			t.Errorf("%s: got %+v, want %s with %q", c.dest, d.list, c.level, c.text)
		}
	}
}

// TestDoctor_Once: what a check finds and the agent reports as a condition is named once.
func TestDoctor_Once(t *testing.T) {
	conditions := []show.Condition{
		{Code: "zookeeper-unreachable"},
		{Code: "waiting-for-sources", Text: "waiting for config.site"},
		{Code: "template-failed", Subject: "app"},
		{Code: "template-failed", Subject: "web"},
		{Code: "service-critical", Subject: "web"},
	}
	for _, c := range []struct {
		unreachable bool
		found       Finding
		want        string
	}{
		{false, Finding{LevelOK, "file", "template app /etc/app", "", ""}, "zookeeper-unreachable,waiting-for-sources,template-failed app,template-failed web,service-critical web"},
		{false, Finding{LevelFail, "file", "template app /etc/app", "", ""}, "zookeeper-unreachable,waiting-for-sources,template-failed web,service-critical web"},
		{false, Finding{LevelFail, "check", "template web", "", ""}, "zookeeper-unreachable,waiting-for-sources,template-failed app,service-critical web"},
		{false, Finding{LevelFail, "server", "a:1", "", ""}, "zookeeper-unreachable,waiting-for-sources,template-failed app,template-failed web,service-critical web"},
		{true, Finding{LevelFail, "server", "a:1", "", ""}, "template-failed app,template-failed web,service-critical web"},
		{false, Finding{LevelWarn, "znode", "config site /config/site", "", ""}, "zookeeper-unreachable,template-failed app,template-failed web,service-critical web"},
		{false, Finding{LevelWarn, "znode", "config web /config/web", "", ""}, "zookeeper-unreachable,waiting-for-sources,template-failed app,template-failed web,service-critical web"},
	} {
		d := &doctor{conditions: conditions, unreachable: c.unreachable, list: []Finding{c.found}}
		d.remaining()
		var got []string
		for _, f := range d.list[1:] {
			got = append(got, f.About)
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%+v: got %q, want %q", c.found, got, c.want)
		}
	}
	same := []Finding{
		{LevelFail, "check", "template a", "no nginx", "install it"},
		{LevelOK, "preview", "template a", "fine", ""},
		{LevelFail, "reload", "template a", "no nginx", "install it"},
		{LevelFail, "check", "template b", "no nginx", "install it"},
		{LevelOK, "preview", "template b", "fine", ""},
		{LevelFail, "hook", "c", "no cat", "install it"},
	}
	if got := joined(same); len(got) != 4 || got[0].About != "template a, template b" || got[3] != same[5] {
		t.Errorf("two missing programs: %+v", got)
	}
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(show.Status{Conditions: conditions})
	}))
	server.Listener = ln
	server.Start()
	t.Cleanup(server.Close)
	list, _ := Examine(t.Context(), &Options{Socket: func() (string, error) { return socket, nil }, ZooKeeper: func(*agent.Config) (session.Config, error) {
		return session.Config{Servers: []string{"a:1"}, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, os.ErrPermission }}, nil
	}, Wait: 2 * time.Second})
	counts := map[string]int{}
	for _, f := range list {
		if f.Level != LevelOK {
			counts[f.Check]++
		}
	}
	if counts["server"] != 1 || counts["zookeeper"] != 0 || counts["condition"] != 3 {
		t.Errorf("one server, two failed templates and a critical service: %+v", list)
	}
}

// TestUnitStateDir: the package gives a state directory from its installation on, also
// before the unit's first start has made the directory.
func TestUnitStateDir(t *testing.T) {
	for sign, want := range map[string]string{
		"var/lib/zkagent": "/var/lib/zkagent", "lib/systemd/system/zkagent.service": "/var/lib/zkagent", "lib/systemd/system/nginx.service": "",
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, sign), 0o700); err != nil {
			t.Fatal(err)
		}
		if got := unitStateDir(root); got != want {
			t.Errorf("with %s: got %q, want %q", sign, got, want)
		}
	}
}

func TestJobs(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"systemctl reload nginx.service", "reload nginx.service"},
		{"/bin/systemctl --no-block reload-or-restart nginx haproxy.service", "reload-or-restart nginx.service reload-or-restart haproxy.service"},
		{"zkagent-check nginx", "start zkagent-check@nginx.service"},
		{"nginx -t", ""},
		{"systemctl", ""},
	} {
		var got []string
		for _, v := range jobs(strings.Fields(c.line)) {
			got = append(got, v.verb, v.unit)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.line, got, c.want)
		}
	}
}

// TestDoctor_Polkit: what systemd answers, by a systemctl of our own. What a
// real one answers is shown by "make test-systemd".
func TestDoctor_Polkit(t *testing.T) {
	for _, c := range []struct{ script, level, text string }{
		{`echo "Failed to reload nginx.service: Isolate is only valid for start." >&2; exit 1`, LevelOK, "allowed"},
		{`echo "Failed to start x.service: Operation refused, unit may not be isolated." >&2; exit 4`, LevelOK, "allowed"},
		{`echo "Failed to reload nginx.service: Access denied" >&2; exit 4`, LevelFail, "Access denied"},
		{`echo "Failed to reload nginx.service: Interactive authentication required." >&2; exit 1`, LevelFail, "not allowed"},
		{`echo "Failed to connect to bus: No such file or directory" >&2; exit 1`, LevelWarn, "unknown: "},
		{`exit 0`, LevelWarn, "unknown: "},
	} {
		dir := t.TempDir()
		args := filepath.Join(dir, "args")
		script := "#!/bin/sh\necho \"$@\" >" + args + "\n" + c.script + "\n"
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		d := &doctor{}
		d.polkit(t.Context(), unitVerb{"reload", "nginx.service"}, &syscall.SysProcAttr{})
		if len(d.list) != 1 || d.list[0].Level != c.level || !strings.Contains(d.list[0].Text, c.text) {
			t.Errorf("%s: got %+v, want %s with %q", c.script, d.list, c.level, c.text)
		}
		got, err := os.ReadFile(args)
		if want := "--no-ask-password --job-mode=isolate reload -- nginx.service\n"; err != nil || string(got) != want {
			t.Errorf("systemctl was asked %q (%v), want %q", got, err, want)
		}
	}
}
