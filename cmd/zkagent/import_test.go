package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImport_Shapes translates settings of many shapes: the result is valid, or
// the exit code says that it is not, and validate refuses the marks of what could
// not be translated.
func TestImport_Shapes(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		code int
		text []string // in the settings or the templates
	}{
		"consul-template-classic": {"main.hcl", 1, []string{
			`level = "warn"`, `= "0640"`, `"/bin/sh"`, `group "web"`, `note: vault has no counterpart`,
			`groups "services" "any"`, `service (print "services/" $service_1)`, `import: there is no function node:`, `import: there is no function plugin`,
			`key "app/cfg" | parseJSON | toYAML`, `sockaddr "GetPrivateIP"`, `{{ .Host }}:{{ .Port }} check`,
		}},
		"consul-template-json": {"config.json", 1, []string{
			`signal       = "SIGUSR1"`, `server {{ .Host }}:{{ .Port }}`, `min = "5s"`, `{{ key "a/b" }}`, `scratch.Set "n" 1`, `allow`, `import: splay of exec`, `pass_env = ["*"]`,
		}},
		"consul-template-exec":  {"new.hcl", 1, []string{`a data centre, a near node`, `"systemctl", "reload", "svc"`}},
		"consul-template-plain": {"settings.hcl", 0, []string{`safeTree "app/users"`, `{{ "{{" }} braces }}`, `"systemctl", "reload", "app"`}},
		"confd-nginx":           {"", 1, []string{`path   = "/myapp"`, `chroot  = "/production"`, `(keys (byKey (tree`, `\"$1\"`}},
		"confd-plain":           {"", 0, []string{`keyOrAbsent "app/url" "http://localhost"`, `keyExists "app/debug"`, `staged`}},
		"remco-main":            {"config.toml", 1, []string{`keyOrAbsent "prod/global/maxconn" "100"`, `import: telemetry`, `kill_timeout = "10s"`}},
		"remco-resource":        {"app.toml", 1, []string{`servers = ["zk:2181"]`, `keys (explode (tree "a"))`, `keyOrAbsent (printf "a/%s" $d)`, `import: not translated: {% spaceless %}`}},
	} {
		t.Run(name, func(t *testing.T) {
			kind := name[:strings.LastIndexByte(name, '-')]
			dir := filepath.Join(t.TempDir(), "out")
			code, talk := runQuiet("import", kind, filepath.Join("testdata/import", name, c.file), "--dir", dir)
			if code != c.code || (code != 0) != strings.Contains(talk, "not translated") {
				t.Errorf("import: got exit code %d, want %d:\n%s", code, c.code, talk)
			}
			valid, talk := runQuiet("validate", dir)
			if want := map[int]int{0: exitOK, 1: exitConfig}[c.code]; valid != want || c.code == 1 && !strings.Contains(talk, "Left over from import") {
				t.Errorf("validate: got exit code %d, want %d:\n%s", valid, want, talk)
			}
			got := textBelow(t, dir)
			for _, text := range c.text {
				if !strings.Contains(got, text) {
					t.Errorf("%q is missing in:\n%s", text, got)
				}
			}
			if has := strings.Contains(got, "import: ") || strings.Contains(got, "not translated"); code != 0 && !has {
				t.Errorf("there is no comment on what is missing:\n%s", got)
			}
		})
	}
}

// runQuiet runs one command line and returns its exit code and what it said.
func runQuiet(args ...string) (int, string) {
	var out, talk bytes.Buffer
	code := run(args, strings.NewReader(""), &out, &talk)
	return code, out.String() + talk.String()
}

// textBelow is the text of all files below a directory.
func textBelow(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		b.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestImport_Verify compares with what the other program rendered: the same, another text,
// and a file that is not there.
func TestImport_Verify(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	template := func(name, text string) string {
		return "template {\n contents = \"" + text + "\"\n destination = \"/etc/" + name + "\"\n}\n"
	}
	settings := write("ct.hcl", template("a.conf", "a {{ key `app/x` }}")+template("b.conf", "b {{ key `app/x` }}")+template("c.conf", "c")+template("d.conf", "{{ secret `x` }}"))
	data := write("data.yaml", "configs: {app: {x: \"1\"}}\n")
	write("golden/etc/a.conf", "a 1")
	write("golden/b.conf", "b 2")
	args := []string{"import", "consul-template", settings, "--dir", filepath.Join(dir, "out"), "--verify", data}
	if code, _ := runQuiet(args...); code != exitUsage {
		t.Errorf("without --golden: exit code %d", code)
	}
	code, talk := runQuiet(append(args, "--golden", filepath.Join(dir, "golden"))...)
	for _, want := range []string{"4 files: 1 identical, 1 different, 1 flagged, 1 not verified", "-b 2", "+b 1", "has no /etc/c.conf"} {
		if !strings.Contains(talk, want) {
			t.Errorf("%q is missing in\n%s", want, talk)
		}
	}
	if code != exitFailed {
		t.Errorf("exit code %d", code)
	}
}
