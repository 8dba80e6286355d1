package apply

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// previewing is a bundle of a changed, a new and a removed file, whose check refuses "bad".
func previewing(t *testing.T) (*applyBed, Config) {
	t.Helper()
	b := newApplyBed(t)
	if _, err := proc.FindPreview(); err != nil {
		t.Skipf("no previews here: %v", err)
	}
	c := b.file("conf/one.conf", `one={{ key "web/v" }};`)
	c.Name = "web"
	two := b.file("conf/two.conf", `{{ with key "web/v" }}two={{ . }};{{ end }}`).Templates[0]
	c.Templates = append(c.Templates, two)
	c.Check = &CheckConfig{At: atPreview, Command: script(`cat %s/*.conf; test -z "$(ls -A %s | grep zkagent)"; ! grep -q bad %s/*`, b.path("conf"), b.path("conf"), b.path("conf"))}
	if err := os.Mkdir(b.path("conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	return b, c
}

// untouched fails the test if anything happens in a directory before the returned function
// is called.
func untouched(t *testing.T, dir string) func() {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MODIFY|unix.IN_MOVE|unix.IN_ATTRIB|unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		buf := make([]byte, 4096)
		if n, err := unix.Read(fd, buf); n > 0 || !errors.Is(err, unix.EAGAIN) {
			t.Errorf("something happened in %s: %d bytes, %v: %q", dir, n, err, buf[:max(n, 0)])
		}
		_ = unix.Close(fd)
	}
}

// A check in a preview sees the new files where they will be, before any of them is there:
// in a vote, and in an apply.
func TestPreview_ChecksBeforeTheSwap(t *testing.T) {
	t.Parallel()
	b, c := previewing(t)
	x := b.bundle(c)
	b.keys(map[string]string{"v": "good"})
	b.good(x)
	b.is("conf/one.conf", "one=good;")

	b.keys(map[string]string{"v": "bad"})
	still := untouched(t, b.path("conf"))
	err := b.Try(t.Context(), x.Bundle, b.view)
	if err == nil || !strings.Contains(err.Error(), "one=bad;two=bad;") {
		t.Errorf("a vote on a bad version: %v", err)
	}
	if _, err := b.Plan(t.Context(), x.Bundle, b.view); err == nil {
		t.Error("a dry run of a bad version has no error")
	}
	still()
	b.bad(x, stageCheck, "one=bad;two=bad;")
	b.is("conf/one.conf", "one=good;")
	b.is("conf/two.conf", "two=good;")

	b.keys(map[string]string{"v": "better"})
	still = untouched(t, b.path("conf"))
	if err := b.Try(t.Context(), x.Bundle, b.view); err != nil {
		t.Errorf("a vote on a good version: %v", err)
	}
	still()
	b.good(x)
	b.is("conf/two.conf", "two=better;")
}

// Where no preview is possible, the check runs after the swap, and a vote says that it was
// not run.
func TestPreview_NotPossible(t *testing.T) {
	t.Parallel()
	none := func(*CheckConfig) (string, error) { return "", errors.New("no namespaces") }
	fails := func(_ context.Context, c proc.Command) (proc.Result, error) {
		if c.Preview != nil {
			return proc.Result{}, &proc.PreviewError{Reason: "no room"}
		}
		return proc.Run(context.Background(), c)
	}
	for name, set := range map[string]func(*Options){
		"at all": func(o *Options) { o.Previews = none }, "this time": func(o *Options) { o.Run = fails },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, c := previewing(t)
			set(&b.Options)
			b.Engine = New(b.Options)
			x := b.bundle(c)
			b.keys(map[string]string{"v": "good"})
			b.good(x)
			b.keys(map[string]string{"v": "bad"})
			if err := b.Try(t.Context(), x.Bundle, b.view); !errors.Is(err, ErrCheckNotRun) {
				t.Errorf("a vote: %v", err)
			}
			b.bad(x, stageCheck, "one=bad;")
			b.is("conf/one.conf", "one=good;")
			b.keys(map[string]string{"v": "good"})
			if err := b.Try(t.Context(), x.Bundle, b.view); err != nil {
				t.Errorf("a vote that changes nothing: %v", err)
			}
		})
	}
}

// A vote makes no directories, and its check sees the files in them.
func TestPreview_DirectoriesYetToBeMade(t *testing.T) {
	t.Parallel()
	b, c := previewing(t)
	c.Templates[1].CreateDirs = true
	dest := b.path("conf/new/deep/two.conf")
	c.Templates[1].Destination = func(*template.Each) (string, error) { return dest, nil }
	c.Check.Command = script(`cat %s; ! grep -q bad %s`, dest, dest)
	x := b.bundle(c)
	b.keys(map[string]string{"v": "bad"})
	still := untouched(t, b.path("conf"))
	if err := b.Try(t.Context(), x.Bundle, b.view); err == nil || !strings.Contains(err.Error(), "two=bad;") {
		t.Errorf("a vote on a bad version: %v", err)
	}
	still()
	b.keys(map[string]string{"v": "good"})
	changes, err := b.Plan(t.Context(), x.Bundle, b.view)
	if err != nil || len(changes) != 2 {
		t.Errorf("a dry run: %+v, %v", changes, err)
	}
	b.good(x)
	if got := read(t, dest); got != "two=good;" {
		t.Errorf("got %q", got)
	}
}

// Programs that read their whole configuration refuse a bad file before it is in place.
func TestPreview_RealPrograms(t *testing.T) {
	t.Parallel()
	for _, p := range []struct {
		name, file, good, bad string
		args                  func(dir, file string) []string
	}{
		{"nginx", "conf.d/web.conf", "proxy_read_timeout 5s;", "proxy_read_timeout 30 potatoes;", func(dir, _ string) []string {
			return []string{"nginx", "-p", dir, "-e", "stderr", "-t", "-q", "-c", "nginx.conf"}
		}},
		{"haproxy", "haproxy.cfg", "frontend f\n  mode http\n  bind 127.0.0.1:65111\n  timeout client 1s\n", "frontend f\n  timeout client potatoes\n", func(_, file string) []string {
			return []string{"haproxy", "-c", "-q", "-f", file}
		}},
		{"promtool", "prometheus.yml", "scrape_configs: []\n", "scrape_configs: potatoes\n", func(_, file string) []string {
			return []string{"promtool", "check", "config", file}
		}},
		{"apache2", "apache2.conf", "LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\nServerName x\nErrorLog /dev/null\n", "Potatoes on\n", func(_, file string) []string {
			return []string{"apache2", "-t", "-f", file}
		}},
		{"named-checkconf", "named.conf", "options { directory \"/tmp\"; };\n", "potatoes { };\n", func(_, file string) []string {
			return []string{"named-checkconf", "-z", file}
		}},
		{"rsyslogd", "rsyslog.conf", "*.* /dev/null\n", "potatoes(\n", func(_, file string) []string {
			return []string{"rsyslogd", "-N1", "-f", file}
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(p.name); err != nil {
				t.Skipf("%s is not installed", p.name)
			}
			b, c := previewing(t)
			file := b.path(p.file)
			if err := os.MkdirAll(b.path("conf.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			main := "pid " + b.path("pid") + ";\nevents {}\nhttp { include conf.d/*.conf; access_log off; }\n"
			if err := os.WriteFile(b.path("nginx.conf"), []byte(main), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Templates = b.file(p.file, `{{ key "web/v" }}`).Templates
			c.Check.Command = argv(p.args(strings.TrimSuffix(b.path("x"), "/x"), file)...)
			x := b.bundle(c)
			b.keys(map[string]string{"v": p.good})
			if err := b.Try(t.Context(), x.Bundle, b.view); err != nil {
				t.Fatalf("a good file that is not there yet: %v", err)
			}
			b.good(x)
			b.keys(map[string]string{"v": p.bad})
			if err := b.Try(t.Context(), x.Bundle, b.view); err == nil || errors.Is(err, ErrCheckNotRun) {
				t.Errorf("a bad file: %v", err)
			}
			b.bad(x, stageCheck, "")
			b.is(p.file, p.good)
		})
	}
}

// A file that goes away is gone in the preview, and nothing is removed before the check has
// passed.
func TestPreview_FilesThatGoAway(t *testing.T) {
	t.Parallel()
	b, c := previewing(t)
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	c.ForEach = &web
	c.Templates = []FileConfig{{
		Name: "each", Contents: "x", Destination: func(e *template.Each) (string, error) {
			if e == nil {
				return "", errors.New("there is no element")
			}
			return b.path("conf/" + e.Key), nil
		},
	}}
	c.Check.Command = script("cd %s; echo *; echo run >>%s; test -e a", b.path("conf"), b.path("runs"))
	x := b.bundle(c)
	b.keys(map[string]string{"a": "1", "b": "2"})
	b.good(x)
	b.is("runs", "run\n") // It names no element, so once is enough.
	b.keys(map[string]string{"b": "2", "c": "3"})
	if err := b.Try(t.Context(), x.Bundle, b.view); err == nil || !strings.Contains(err.Error(), "b c") {
		t.Errorf("a vote without the file that the check wants: %v", err)
	}
	b.bad(x, stageCheck, "b c")
	b.is("conf/a", "x")
	if _, err := os.Stat(b.path("conf/c")); err == nil {
		t.Error("the refused change has made a file")
	}
	b.keys(map[string]string{"a": "1"}) // only removals
	still := untouched(t, b.path("conf"))
	if err := b.Try(t.Context(), x.Bundle, b.view); err != nil {
		t.Errorf("a vote on a good version: %v", err)
	}
	still()
	b.good(x)
	if _, err := os.Stat(b.path("conf/b")); err == nil {
		t.Error("a file that is not wanted is there")
	}
}

// The destination is a link into another directory: the file that it names is covered.
func TestPreview_LinkToAnotherDirectory(t *testing.T) {
	t.Parallel()
	b, c := previewing(t)
	c.Templates = c.Templates[:1]
	if err := os.Mkdir(b.path("elsewhere"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.path("elsewhere/real"), b.path("conf/one.conf")); err != nil {
		t.Fatal(err)
	}
	c.Check.Command = script("cat %s %s; ! grep -q bad %s", b.path("conf/one.conf"), b.path("elsewhere/real"), b.path("conf/one.conf"))
	x := b.bundle(c)
	b.keys(map[string]string{"v": "good"})
	b.good(x)
	b.is("elsewhere/real", "one=good;")
	b.keys(map[string]string{"v": "bad"})
	b.bad(x, stageCheck, "one=bad;one=bad;")
	b.is("elsewhere/real", "one=good;")
}
