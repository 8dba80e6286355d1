package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

var update = flag.Bool("update", false, "write the golden files and the reference")

// testOptions make loading independent of the host.
func testOptions() Options {
	env := map[string]string{"ZONE": "eu-1"}
	return Options{
		Offline:  true,
		Env:      func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Hostname: func() (string, error) { return "host1", nil },
	}
}

func load(t *testing.T, text string) *Settings {
	t.Helper()
	s, err := LoadBytes(filepath.Join(t.TempDir(), "zkagent.hcl"), []byte(text), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// golden compares with a file, or writes it with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run go test -update and look at the difference\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

func diagnostics(t *testing.T, s *Settings) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.Write(&b, 0, false); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(b.String(), dir+"/", "")
}

func TestLoad_Valid(t *testing.T) {
	cases, err := filepath.Glob("testdata/valid/*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		if strings.HasSuffix(path, ".golden") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			s, err := Load([]string{path}, testOptions())
			if err != nil {
				t.Fatalf("got errors:\n%s", diagnostics(t, s))
			}
			data, err := json.MarshalIndent(plain(s.Config), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			got := diagnostics(t, s) + strings.ReplaceAll(string(data), dir+"/", "") + "\n"
			golden(t, filepath.Join("testdata", "valid", filepath.Base(path)+".golden"), got)
		})
	}
}

// plain is what a golden file holds of a configuration: no functions, nothing
// of this host.
func plain(c agent.Config) map[string]any {
	z := c.ZooKeeper
	return map[string]any{
		"id": c.ID, "host": c.Host, "state_dir": c.StateDir, "on_stop": c.OnStop, "splay": c.Splay, "log": c.Log, "http": c.HTTP,
		"zookeeper": map[string]any{
			"servers": z.Servers, "chroot": z.Chroot, "timeout": z.Timeout, "auth": z.Auth, "acl": z.ACL, "tls": z.TLS != nil, "identity": z.Identity,
		},
		"services": c.Services, "configs": c.Configs, "bake_checks": c.BakeChecks, "groups": c.Groups, "group_sets": c.GroupSets, "elections": c.Elections,
		"bundles": c.Bundles, "hooks": c.Hooks, "execs": c.Execs,
	}
}

func TestLoad_Invalid(t *testing.T) {
	cases, err := filepath.Glob("testdata/invalid/*.hcl")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		t.Run(filepath.Base(path), func(t *testing.T) {
			opts := testOptions()
			opts.Offline = false
			s, err := Load([]string{path}, opts)
			if err == nil {
				t.Error("got no error")
			}
			golden(t, strings.TrimSuffix(path, ".hcl")+".diag", diagnostics(t, s))
		})
	}
}

func TestLoad_Directory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("b.hcl", `config "web" { path = "/config/web" }`)
	write("a.hcl", `zookeeper { servers = ["zk1"] }`+"\n"+`hook "x" {
  on_change = [config.web]
  command   = ["true"]
}`)
	write("notes.txt", "not settings")
	write(".hidden.hcl", "broken {")
	s, err := Load([]string{dir}, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Config.Files, []string{filepath.Join(dir, "a.hcl"), filepath.Join(dir, "b.hcl")}; !slices.Equal(got, want) {
		t.Errorf("got files %v, want %v", got, want)
	}
	if got, want := s.Config.Hooks[0].OnChange, []view.Source{{Kind: view.KindConfig, Name: "web"}}; !slices.Equal(got, want) {
		t.Errorf("got sources %v, want %v", got, want)
	}
	hash := s.Config.Hash
	write("b.hcl", `config "web" { path = "/config/web2" }`)
	if s, err = Load([]string{dir}, testOptions()); err != nil {
		t.Fatal(err)
	}
	if s.Config.Hash == hash {
		t.Error("the hash did not change with the settings")
	}
}

func TestLoad_Unreadable(t *testing.T) {
	empty := t.TempDir()
	for _, path := range []string{filepath.Join(empty, "missing.hcl"), empty, "/dev/zero"} {
		if _, err := Load([]string{path}, testOptions()); err == nil {
			t.Errorf("%s: got no error", path)
		}
	}
}

const commands = `
zookeeper { servers = ["zk1"] }
groups "all" { path = "/services" }
group "api" { path = "/services/api" }
template "one" {
  contents    = "x"
  destination = "/etc/one/${each.key}.conf"
  for_each    = groups.all
  check { command = ["test", "-f", "${staged_dir}${destination}", staged, "--", each.key, upper(each.key), each.value[0].host, "${each.value[0].port}"] }
}
template "two" {
  contents    = "x"
  destination = "/etc/two.conf"
  reload { command = concat(["sh", "-c"], ["echo \"$1\"", "sh", "${basename}"]) }
}
`

func TestCommand_EvaluatedWhenItRuns(t *testing.T) {
	s := load(t, strings.ReplaceAll(commands, "${basename}", "${trimprefix(destination, \"/etc/\")}"))
	each := &template.Each{Key: "api", Value: []view.Member{{Host: "10.0.0.5", Port: 8080}}}
	dest, err := s.Config.Bundles[0].Templates[0].Destination(each)
	if err != nil {
		t.Fatal(err)
	}
	if want := "/etc/one/api.conf"; dest != want {
		t.Errorf("got destination %q, want %q", dest, want)
	}
	now := command.Vars{Staged: "/tmp/s", StagedDir: "/tmp/d", Destination: dest, Each: each}
	got, err := s.Config.Bundles[0].Check.Command.Args(now)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"test", "-f", "/tmp/d/etc/one/api.conf", "/tmp/s", "--", "api", "API", "10.0.0.5", "8080"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got, err = s.Config.Bundles[1].Reload.Command.Args(command.Vars{Destination: "/etc/two.conf"})
	if want := []string{"sh", "-c", `echo "$1"`, "sh", "two.conf"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	// What cannot be evaluated is an error of this run.
	if _, err := s.Config.Bundles[0].Check.Command.Args(command.Vars{Each: &template.Each{Key: "api"}}); err == nil {
		t.Error("got no error for an element without members")
	}
}

func TestDestination_KeyFromZooKeeperCannotLeadAway(t *testing.T) {
	s := load(t, strings.ReplaceAll(commands, "${basename}", ""))
	destination := s.Config.Bundles[0].Templates[0].Destination
	for _, key := range []string{"../../etc/passwd", "a\nb", "..", "a/../../b"} {
		if got, err := destination(&template.Each{Key: key}); err == nil && !strings.HasPrefix(got, "/etc/one/") {
			t.Errorf("key %q: got %q", key, got)
		} else if err == nil && strings.Contains(key, "/..") {
			t.Errorf("key %q: got no error and %q", key, got)
		}
	}
}

// TestLoad_MissingCredential: the warning stands at the command that wants the
// credential.
func TestLoad_MissingCredential(t *testing.T) {
	s := load(t, "hook \"h\" {\n  command = [\"x\", credential(\"token\")]\n  overlap = \"forbid\"\n  schedule = \"@daily\"\n}\n")
	if len(s.Diagnostics) != 1 || s.Diagnostics[0].Subject.Start.Line != 2 {
		t.Errorf("got %v", s.Diagnostics)
	}
}

func TestFunctions(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "zk-auth"), []byte("u:p\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := testOptions()
	opts.Offline = false
	opts.Env = func(name string) (string, bool) {
		v, ok := map[string]string{"CREDENTIALS_DIRECTORY": dir, "ZONE": "z1"}[name]
		return v, ok
	}
	s, err := LoadBytes(filepath.Join(dir, "x.hcl"), []byte(`
agent { id = "${hostname()}-${env("ZONE")}-${env("NONE", "dflt")}${env("NONE")}" }
zookeeper {
  servers = split(",", "a:2181,b:2181")
  auth "digest" { credential = credential("zk-auth") }
}
service "s" {
  group  = "/s"
  port   = 1
  labels = { secret = trimspace(file("zk-auth")) }
}
`), opts)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Config
	if got, want := c.ID, "host1-z1-dflt"; got != want {
		t.Errorf("got id %q, want %q", got, want)
	}
	if got, want := string(c.ZooKeeper.Auth[0].Data), "u:p"; got != want {
		t.Errorf("got credential %q, want %q", got, want)
	}
	if got, want := c.Services[0].Labels["secret"], "u:p"; got != want {
		t.Errorf("got file %q, want %q", got, want)
	}
	if got, want := c.ZooKeeper.Servers, []string{"a:2181", "b:2181"}; !slices.Equal(got, want) {
		t.Errorf("got servers %q, want %q", got, want)
	}
}

func TestCredential_MissingOnThisHost(t *testing.T) {
	text := []byte("zookeeper {\n  servers = [\"a\"]\n  auth \"digest\" { credential = credential(\"zk-auth\") }\n}\n")
	s, err := LoadBytes("x.hcl", text, testOptions())
	if err != nil {
		t.Fatalf("offline: %v", err)
	}
	if got := diagnostics(t, s); !strings.Contains(got, "x.hcl:3:32: warning: Credential missing on this host") {
		t.Errorf("got %q", got)
	}
	opts := testOptions()
	opts.Offline = false
	if _, err = LoadBytes("x.hcl", text, opts); err == nil {
		t.Error("got no error without the credential")
	}
}

// TestLoad_ReconfigNeedsTLS: the writer of /zookeeper/config must not get a password.
func TestLoad_ReconfigNeedsTLS(t *testing.T) {
	for block, ok := range map[string]bool{
		`auth "digest" { credential = "u:p" }`:                                   false,
		`auth "x" { credential = "secret" }`:                                     false,
		"auth \"digest\" { credential = \"u:p\" }\n tls {}":                      true,
		"auth \"sasl\" {\n mechanism = \"DIGEST-MD5\"\n credential = \"u:p\"\n}": true,
		"": true,
	} {
		_, err := LoadBytes("x.hcl", []byte("zookeeper {\n servers = [\"127.0.0.1\"]\n follow_reconfig = true\n"+block+"\n}\n"), testOptions())
		if (err == nil) != ok || !ok && !strings.Contains(err.Error(), "Servers are not verified") {
			t.Errorf("%s: got %v", block, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	s := load(t, `
zookeeper { servers = ["a"] }
group "g" { path = "/g" }
group "h" {
  path = "/h"
  guard { hold = "0s" }
}
service "s" {
  group = "/s"
  port  = 80
  check "tcp" { address = "127.0.0.1:80" }
}
`)
	g, h, check := s.Config.Groups[0], s.Config.Groups[1], s.Config.Services[0].Checks[0]
	if g.Guard.Off || g.Guard.MaxLoss != 0.3 || g.Guard.MinMembers != 3 || g.Guard.Window != 30*time.Second || g.Guard.Hold != 10*time.Minute || g.OnEmpty != "" {
		t.Errorf("got guard %+v, on_empty %q", g.Guard, g.OnEmpty)
	}
	if h.Guard.Hold >= 0 {
		t.Errorf("got hold %s, want one that never ends", h.Guard.Hold)
	}
	if check.Rise != 2 || check.Fall != 3 || check.Interval != 2*time.Second || check.Timeout != time.Second {
		t.Errorf("got check %+v", check)
	}
	if got, want := s.Config.ZooKeeper.Timeout, 10*time.Second; got != want {
		t.Errorf("got session timeout %s, want %s", got, want)
	}
}

// TestCommand_NoDataInScripts: what comes from ZooKeeper stands in a command only where
// it can be neither an option nor a part of a script.
func TestCommand_NoDataInScripts(t *testing.T) {
	for argv, ok := range map[string]bool{
		`["sh", "-c", "touch ${each.key}"]`:                                   false,
		`["/bin/bash", "-ec", "touch ${each.value[0].host}"]`:                 false,
		`["env", "-i", "A=b", "bash", "-o", "pipefail", "-c", upper(staged)]`: false,
		`["nice", "-n", "5", "dash", "-c", "cat ${destination}"]`:             false,
		`["zsh", "-x", "-c", join(" ", ["a", each.key])]`:                     false,
		`["ksh", "-c${each.key}"]`:                                            false,
		`["env", "-S", "sh -c ${each.key}"]`:                                  false,
		`["sh", each.key, "x"]`:                                               false,
		`["sh", "-${each.key}", "x"]`:                                         false,
		`each.key == "a" ? ["sh", "-c", "a"] : ["sh", "-c", each.key]`:        false,
		`concat(["sh", "-c"], [for m in each.value : "touch ${m.host}"])`:     false,
		`["python3", "-c", "print('${each.key}')"]`:                           false,
		`["su", "-", "www", "-c", "touch ${each.key}"]`:                       false,
		`[each.key]`:                                                         false,
		`["/opt/${each.key}", "x"]`:                                          false,
		`["ssh", "web1", "reload ${each.key}"]`:                              false,
		`["ssh", "web1", "reload", "--", each.key]`:                          false,
		`["flock", "/run/lock", "-c", "reload ${each.key}"]`:                 false,
		`["script", "-qc", "reload ${each.key}"]`:                            false,
		`["awk", "BEGIN { system(\"${each.key}\") }"]`:                       false,
		`["sed", "-e", "1p", "-e", each.key, destination]`:                   false,
		`["sed", "-e", "1p", "-e", "--", each.key]`:                          false,
		`["sed", "--expression=${each.key}"]`:                                false,
		`["perl", "-M${each.key}", "x.pl"]`:                                  false,
		`["nodejs", "-e", each.key]`:                                         false,
		`["sudo", "-s", "--", each.key]`:                                     false,
		`["nice", each.key]`:                                                 false,
		`["nice", "--", each.key]`:                                           false,
		`["socat", "-", "EXEC:${each.key}"]`:                                 false,
		`["pypy3", "-c", each.key]`:                                          false,
		`["deno", "eval", each.key]`:                                         false,
		`["deno", "eval", "--", each.key]`:                                   false,
		`["bun", "-e", each.key]`:                                            false,
		`["Rscript", "-e", each.key]`:                                        false,
		`["vim", "-c", each.key]`:                                            false,
		`["make", "--eval", each.key]`:                                       false,
		`["make", "X=${each.key}"]`:                                          false,
		`["systemd-run", "--", each.key]`:                                    false,
		`["pkexec", "--", each.key]`:                                         false,
		`["tmux", "new", "-d", "--", each.key]`:                              false,
		`["sqlite3", "db", "--", each.key]`:                                  false,
		`["busybox", "sh", "-c", each.key]`:                                  false,
		`["/opt/unknown", "--script", each.key]`:                             false,
		`["/opt/unknown", "-x", "--eval", "--", each.key]`:                   false,
		`["/opt/unknown", each.key]`:                                         false,
		`["/opt/unknown", "-x", "app@${each.key}"]`:                          false,
		`["/opt/unknown", "--name=${each.key}"]`:                             false,
		`["sh", "-c", "--", each.key]`:                                       false,
		`["sh", "-c", "-o", "pipefail", "--", each.key]`:                     false,
		`["sh", "--", each.key]`:                                             false,
		`["bash", "-x", "--", each.key]`:                                     false,
		`["/opt/wrap", "sh", "--", each.key]`:                                false,
		`["sh", "-c", "touch \"$1\"", "sh", each.key]`:                       false,
		`["awk", "-v", "key=${each.key}", "{ print key }", destination]`:     false,
		`["env", "KEY=${each.key}", "reload"]`:                               false,
		`concat(["/opt/reload", "-x"], [for m in each.value : m.host])`:      false,
		`["sed", "-n", "1p", destination]`:                                   true,
		`["sh", "-ec", "A=b; cat \"$1\" \"$2\"", "sh", staged, destination]`: true,
		`["nginx", "-t", "-c", staged]`:                                      true,
		`["haproxy", "-c", "-f", staged]`:                                    true,
		`["/opt/check", "--file=${staged}"]`:                                 true,
		`["sh", "-c", "touch \"$1\"", "--", each.key]`:                       true,
		`["sh", "-c", "touch \"$1\"", "sh", "--", each.key]`:                 true,
		`["sh", "/usr/lib/check", "--", each.key]`:                           true,
		`["rm", "-f", "--", each.key, each.value[0].host]`:                   true,
		`["systemctl", "reload", "app@${each.key}"]`:                         true,
		`["systemctl", "--no-block", "reload", "--", "app@${each.key}"]`:     true,
	} {
		text := `zookeeper { servers = ["zk1"] }
groups "all" { path = "/services" }
template "t" {
  contents    = "x"
  destination = "/etc/one/${each.key}.conf"
  for_each    = groups.all
  check { command = ` + argv + ` }
}`
		path := filepath.Join(t.TempDir(), "zkagent.hcl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load([]string{path}, testOptions())
		if err == nil && s.Config.Bundles != nil {
			// What cannot be known before is refused when it runs.
			each := &template.Each{Key: "; touch x", Value: []view.Member{{Host: "$(id)"}}}
			_, err = s.Config.Bundles[0].Check.Command.Args(command.Vars{Staged: "/s", Destination: "/d", Each: each})
		}
		if got := err == nil; got != ok {
			t.Errorf("%s: got %v", argv, err)
		}
	}
}

// TestLoad_DestinationsByOtherPaths: one file under two names, and files that the
// agent reads or keeps for itself.
func TestLoad_DestinationsByOtherPaths(t *testing.T) {
	for name, c := range map[string]struct{ one, two, want string }{
		"linked directory":  {"DIR/real/out", "DIR/link/out", "Two templates with one destination"},
		"settings file":     {"DIR/real/out", "DIR/conf/a.hcl", "Destination is a settings file"},
		"new settings file": {"DIR/real/out", "DIR/conf/new.hcl", "Destination is a settings file"},
		"other directory":   {"DIR/real/out", "DIR/real/new.hcl", ""},
		"double slash":      {"DIR/real/out", "DIR/real//./out", "Two templates with one destination"},
		"linked file":       {"DIR/real/out", "DIR/file", "Two templates with one destination"},
		"directory":         {"DIR/real/out", "DIR/link/out/below/x", "Destination below another"},
		"link of another":   {"DIR/real/out", "DIR/theirs/link/out", ""},
		"file of another":   {"DIR/real/out", "DIR/theirs/file", ""},
		"state directory":   {"DIR/real/out", "DIR/state/halts.json", "Destination is in the state directory"},
		"template":          {"DIR/real/out", "DIR/link/t.tmpl", "Destination is a template"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, d := range []string{"real", "conf"} {
				if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			theirs := filepath.Join(dir, "theirs")
			err := errors.Join(os.Symlink("real", filepath.Join(dir, "link")), os.Symlink("real/out", filepath.Join(dir, "file")),
				os.Mkdir(theirs, 0o700), os.Chmod(theirs, 0o777), os.Symlink(filepath.Join(dir, "real"), filepath.Join(theirs, "link")), os.Symlink(filepath.Join(dir, "real/out"), filepath.Join(theirs, "file")))
			for _, f := range []string{"out", "t.tmpl"} {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, "real", f), []byte("x"), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("agent {\n  state_dir = \"DIR/state\"\n}\ntemplate \"three\" {\n  source      = \"DIR/real/t.tmpl\"\n  destination = \"DIR/three\"\n}\ntemplate \"one\" {\n  contents    = \"1\"\n  destination = %q\n}\ntemplate \"two\" {\n  contents    = \"2\"\n  destination = %q\n}\n", c.one, c.two)
			text = strings.ReplaceAll(text, "DIR", dir)
			if err := os.WriteFile(filepath.Join(dir, "conf", "a.hcl"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Load([]string{filepath.Join(dir, "conf")}, Options{})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The key of an element must not make a settings file, or a file in the state directory.
func TestLoad_KeysCannotMakeFilesOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	for destination, want := range map[string]string{"DIR/${each.key}": "Destination is a settings file", "DIR/state/${each.key}": "Destination is in the state directory", "DIR/out/${each.key}": ""} {
		text := "agent {\n  state_dir = \"DIR/state\"\n}\nzookeeper { servers = [\"zk1\"] }\ngroups \"all\" { path = \"/services\" }\n" +
			"template \"t\" {\n  contents    = \"x\"\n  for_each    = groups.all\n  destination = \"" + destination + "\"\n}\n"
		if err := os.WriteFile(filepath.Join(dir, "a.hcl"), []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load([]string{dir}, testOptions())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", destination, err, want)
		}
	}
}
