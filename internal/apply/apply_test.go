package apply

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// applyBed is the apply of one agent that is not run: the test is the loop.
type applyBed struct {
	*Engine

	t    testing.TB
	dir  string
	view view.View

	renders *counter
}

func newApplyBed(t testing.TB) *applyBed {
	t.Helper()
	dir := t.TempDir()
	renders := counter{}
	e := New(Options{AgentID: "a1", StateDir: filepath.Join(dir, "state"), Run: proc.Run, Observer: &renders})
	e.Recover(nil)
	return &applyBed{Engine: e, t: t, dir: dir, renders: &renders}
}

// counter counts the executions of templates.
type counter struct {
	nobody

	n atomic.Int64
}

func (c *counter) Rendered(string, string) { c.n.Add(1) }

// testBundle is a bundle with what the loop remembers of it.
type testBundle struct {
	*Bundle

	applied bool
	seen    view.View
	failed  bool
}

func (b *applyBed) path(name string) string { return filepath.Join(b.dir, name) }

// keys is a new state of the tree "web".
func (b *applyBed) keys(keys map[string]string) {
	b.view = b.view.With(view.TreeOf("web", "/config/web", keys))
}

// file is a bundle of one template.
func (b *applyBed) file(name, contents string) Config {
	dest := b.path(name)
	return Config{Name: name, Templates: []FileConfig{{
		Name: name, Contents: contents, Destination: func(*template.Each) (string, error) { return dest, nil },
	}}}
}

func (b *applyBed) bundle(c Config) *testBundle {
	b.t.Helper()
	x := Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}, {Kind: view.KindGroups, Name: "all"}})
	if x.Err != nil {
		b.t.Fatal(x.Err)
	}
	return &testBundle{Bundle: x}
}

// apply applies the present view as the loop does.
func (b *applyBed) apply(x *testBundle) Result {
	job := Job{Bundle: x.Bundle, View: b.view, Old: x.seen, First: !x.applied, Force: x.failed}
	b.Join(&job)
	r := b.Run(b.t.Context(), job)
	b.Wait()
	if n, _ := b.attempts.Get(x.Config.Name); n.Running {
		b.t.Errorf("after an apply its reload runs: %+v", n)
	}
	x.applied, x.seen, x.failed = true, b.view, r.Err != nil
	return r
}

// good is apply that must succeed.
func (b *applyBed) good(x *testBundle) Result {
	b.t.Helper()
	r := b.apply(x)
	if r.Err != nil {
		b.t.Fatal(r.Err)
	}
	return r
}

// bad is apply that must fail at a stage, and say what is wanted.
func (b *applyBed) bad(x *testBundle, stage, text string) {
	b.t.Helper()
	r := b.apply(x)
	if r.Err == nil || r.Stage != stage || !strings.Contains(r.Err.Error(), text) {
		b.t.Errorf("got %v at %q, want %q at %q", r.Err, r.Stage, text, stage)
	}
}

func (b *applyBed) is(name, want string) {
	b.t.Helper()
	if got := read(b.t, b.path(name)); got != want {
		b.t.Errorf("%s: got %q, want %q", name, got, want)
	}
}

// TestApply_DiskFailsAtEveryCall lets every call that changes something fail,
// once each: all of the old or all of the new files are in place, and the next
// apply makes it good.
func TestApply_DiskFailsAtEveryCall(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for n := 1; ; n++ {
			b := newApplyBed(t)
			calls := 0
			fsys := &files.FS{}
			b.FS = fsys
			b.Engine = New(b.Options)
			c := b.file("one", `one={{ key "web/v" }};`)
			c.Templates = append(c.Templates, b.file("two", `two={{ key "web/v" }};`).Templates...)
			c.Check = &CheckConfig{At: atSwapped, Command: argv("true")}
			c.Reload = &ReloadConfig{Command: script("cat %s %s > %s", b.path("one"), b.path("two"), b.path("log"))}
			x := b.bundle(c)
			b.keys(map[string]string{"v": "1"})
			b.good(x)
			fsys.Before = func(string, string) error {
				if calls++; calls == n {
					return fault
				}
				return nil
			}
			b.keys(map[string]string{"v": "2"})
			r := b.apply(x)
			if now := read(t, b.path("one")) + read(t, b.path("two")); now != crashOld && now != crashNew {
				t.Errorf("%v at call %d: a mixture: %q", fault, n, now)
			}
			if r.Err != nil && !errors.Is(r.Err, fault) {
				t.Errorf("%v at call %d: got %v", fault, n, r.Err)
			}
			failed := calls >= n
			b.good(x)
			b.is("log", crashNew)
			if b.pending.has("one") {
				t.Errorf("%v at call %d: a reload is pending for ever", fault, n)
			}
			if !failed {
				break
			}
		}
	}
}

// The note of a pending reload cannot be written, so nothing is swapped: no view says that
// new files are in place.
func TestApply_NoteOfAReloadFails(t *testing.T) {
	b := newApplyBed(t)
	b.keys(map[string]string{"v": "1"})
	b.FS = &files.FS{Before: func(_, path string) error {
		if strings.Contains(path, "pending_reloads") {
			return errors.New("no space left on device")
		}
		return nil
	}}
	b.Engine = New(b.Options)
	c := b.file("out", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("false")}
	b.bad(b.bundle(c), stageSwap, "no space left")
	if text := b.PendingText("out"); text != "" || exists(b.path("out")) {
		t.Errorf("%q, the file is there: %v", text, exists(b.path("out")))
	}
	_ = b.pending.add("out", "", true) // Old files came back, and the program has not read them.
	b.bad(b.bundle(c), stageSwap, "no space left")
	if text := b.PendingText("out"); !strings.Contains(text, "taken back") {
		t.Errorf("%q", text)
	}
}

// TestApply_PlainFileFailsAtEveryCall is the same for one file without a
// command, which needs no journal: nothing is left beside it.
func TestApply_PlainFileFailsAtEveryCall(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		b := newApplyBed(t)
		x := b.bundle(b.file("conf/one", `{{ key "web/v" }}`))
		if err := os.Mkdir(b.path("conf"), 0o750); err != nil {
			t.Fatal(err)
		}
		b.keys(map[string]string{"v": "1"})
		b.good(x)
		calls := 0
		b.FS = &files.FS{Before: func(string, string) error {
			if calls++; calls == n {
				return syscall.EIO
			}
			return nil
		}}
		b.keys(map[string]string{"v": "2"})
		r := b.apply(x)
		if got := read(t, b.path("conf/one")); r.Err != nil && got != "1" || r.Err == nil && got != "2" {
			t.Errorf("call %d: got %q after %v", n, got, r.Err)
		}
		failed := calls >= n
		b.good(x)
		b.is("conf/one", "2")
		entries, err := os.ReadDir(b.path("conf"))
		if err != nil || len(entries) != 1 {
			t.Errorf("call %d: %d files are there, %v", n, len(entries), err)
		}
		if !failed {
			return
		}
	}
}

// TestApply_BadTemplates are templates that fail, each in its own way: they
// are named, bounded, and leave the last good file.
func TestApply_BadTemplates(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	loop := `{{ define "f" }}{{ range loop 1000 }}{{ range loop 1000 }}{{ range loop 1000 }}{{ range loop 1000 }}{{ end }}{{ end }}{{ end }}{{ end }}{{ end }}`
	for name, c := range map[string]struct{ contents, text string }{
		"infinite loop":   {loop + `ok{{ if eq (key "web/v") "2" }}{{ template "f" }}{{ end }}`, "too long"},
		"recursion":       {`{{ define "f" }}{{ template "f" }}{{ end }}ok{{ if eq (key "web/v") "2" }}{{ template "f" }}{{ end }}`, "nested too deeply"},
		"2 GB output":     {`ok{{ if eq (key "web/v") "2" }}{{ range loop 1000 }}{{ range loop 1000 }}{{ "` + strings.Repeat("x", 2000) + `" }}{{ end }}{{ end }}{{ end }}`, "too large"},
		"today's data":    {`ok{{ if eq (key "web/v") "2" }}{{ index (key "web/list" | split ",") 3 }}{{ end }}`, "index"},
		"no such key":     {`ok{{ if eq (key "web/v") "2" }}{{ key "web/none" }}{{ end }}`, `has no key "none"`},
		"a number wanted": {`ok{{ if eq (key "web/v") "2" }}{{ key "web/list" | parseInt }}{{ end }}`, "parseInt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newApplyBed(t)
			f := b.file("web", c.contents)
			f.Templates[0].Timeout, f.Templates[0].MaxOutput = 30*time.Second, 1<<20
			if name == "infinite loop" {
				f.Templates[0].Timeout = 2 * time.Second // the good ones have it, too, on a machine that is busy.
			}
			x, other := b.bundle(f), b.bundle(b.file("other", `{{ key "web/v" }}`))
			b.keys(map[string]string{"v": "1", "list": "a,b"})
			b.good(x)
			b.keys(map[string]string{"v": "2", "list": "a,b"})
			b.bad(x, stageRender, c.text)
			b.is("web", "ok")
			b.good(other)
			b.is("other", "2")
			b.keys(map[string]string{"v": "3", "list": "a,b"})
			b.good(x)
		})
	}
}

func TestApply_BadDestinations(t *testing.T) {
	t.Parallel()
	b := newApplyBed(t)
	b.keys(map[string]string{"v": "1"})
	if err := os.MkdirAll(b.path("dir/sub"), 0o750); err != nil {
		t.Fatal(err)
	}
	b.bad(b.bundle(b.file("dir", "x")), stageStage, "directory")
	b.bad(b.bundle(b.file("none/x", "x")), stageStage, "does not exist")
	if err := os.Symlink(b.path("target"), b.path("link")); err != nil {
		t.Fatal(err)
	}
	refuse := b.file("link", `{{ key "web/v" }}`)
	refuse.Templates[0].Symlink = files.SymlinkRefuse
	b.bad(b.bundle(refuse), stageStage, "symbolic link")
	if exists(b.path("target")) {
		t.Error("a refused link was followed")
	}
	b.good(b.bundle(b.file("link", `{{ key "web/v" }}`)))
	b.is("target", "1")
	if info, err := os.Lstat(b.path("link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	twice := b.file("same", "x")
	twice.Templates = append(twice.Templates, twice.Templates[0])
	b.bad(b.bundle(twice), stageRender, "same destination")
}

// TestApply_ChecksAndReloadsThatHang are ended by their limits, with all that
// they have started.
func TestApply_ChecksAndReloadsThatHang(t *testing.T) {
	t.Parallel()
	b := newApplyBed(t)
	b.keys(map[string]string{"v": "1"})
	for _, at := range []string{"staged", atSwapped} {
		c := b.file("check-"+at, "new")
		c.Check = &CheckConfig{At: at, Timeout: 100 * time.Millisecond, Command: argv("sleep", "1000")}
		b.bad(b.bundle(c), stageCheck, "timed out")
		b.is("check-"+at, "")
	}
	c := b.file("reload", "new")
	c.Reload = &ReloadConfig{Timeout: 100 * time.Millisecond, OnFailure: onFailureKeep, Command: argv("sleep", "1000")}
	b.bad(b.bundle(c), stageReload, "timed out")
	b.is("reload", "new")
	if !b.pending.has("reload") {
		t.Error("a reload that timed out is not pending")
	}
	other := b.file("other", `{{ key "web/v" }}`)
	b.good(b.bundle(other))
	b.is("other", "1")
}

// A directory at the name of a backup fails no change that is in use.
func TestApply_ObstacleOfABackup(t *testing.T) {
	b := newApplyBed(t)
	c := b.file("out", `{{ key "web/v" }}`)
	c.Templates[0].Backup = 1
	c.Reload = &ReloadConfig{Command: argv("true")}
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1"})
	b.good(x)
	if err := os.MkdirAll(filepath.Join(b.path("out.bak"), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.keys(map[string]string{"v": "2"})
	b.good(x)
	b.is("out", "2")
	if list, _ := b.Events.Since(0); len(list) != 1 || list[0].Kind != "backup-failed" || !strings.Contains(list[0].Text, b.path("out.bak")) {
		t.Errorf("the events are %+v", list)
	}
}

// The check of a file that is written in place reads its new text in the state directory. A
// killed agent leaves nothing elsewhere: the text may be secret.
func TestApply_InPlaceIsStagedInTheStateDirectory(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	b := newApplyBed(t)
	b.keys(map[string]string{"v": "1"})
	c := b.file("out", `{{ key "web/v" }}`)
	c.Templates[0].InPlace = true
	b.good(b.bundle(c))
	b.keys(map[string]string{"v": "2"})
	c.Check = &CheckConfig{Command: command.Command{Text: "staged", Args: func(v command.Vars) ([]string, error) {
		return []string{"sh", "-c", `grep -q 2 "$1" && test -z "$(ls ` + temp + `)"`, "sh", v.Staged}, nil
	}}}
	b.good(b.bundle(c))
	b.is("out", "2")
}

// TestApply_InPlaceKeepsTheInode is a file that is bind-mounted by itself.
func TestApply_InPlaceKeepsTheInode(t *testing.T) {
	t.Parallel()
	b := newApplyBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Templates[0].InPlace = true
	c.Check = &CheckConfig{At: atSwapped, Command: script("! grep -q bad %s", b.path("web"))}
	x := b.bundle(c)
	b.keys(map[string]string{"v": "a long first text"})
	b.good(x)
	inode := func() uint64 {
		var st syscall.Stat_t
		if err := syscall.Stat(b.path("web"), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	before := inode()
	b.keys(map[string]string{"v": "short"})
	b.good(x)
	b.is("web", "short")
	b.keys(map[string]string{"v": "bad"})
	b.bad(x, stageCheck, "exit status 1")
	b.is("web", "short")
	if inode() != before {
		t.Error("the file is another one")
	}
}

// TestApply_OneOfManyTemplates is one key of 10,000 that changes, under 50
// templates of which one uses it: one execution, one file written.
func TestApply_OneOfManyTemplates(t *testing.T) {
	t.Parallel()
	b := newApplyBed(t)
	keys := map[string]string{}
	for i := range 10_000 {
		keys[fmt.Sprintf("k%d", i)] = "old"
	}
	var bundles []*testBundle
	for i := range 50 {
		bundles = append(bundles, b.bundle(b.file(fmt.Sprintf("f%d", i), fmt.Sprintf(`{{ key "web/k%d" }}`, i))))
	}
	b.keys(keys)
	for _, x := range bundles {
		b.good(x)
	}
	writes := 0
	b.FS = &files.FS{Before: func(op, _ string) error {
		if op == "rename" {
			writes++
		}
		return nil
	}}
	keys["k7"] = "new"
	old := b.view
	b.keys(keys)
	concerned := 0
	for _, x := range bundles {
		if x.Concerns(old, b.view) {
			concerned++
			b.good(x)
		}
	}
	executed := b.renders.n.Load()
	if concerned != 1 || executed != 51 || writes != 1 {
		t.Errorf("got %d bundles, %v executions, %d renames; want 1, 50 and 1, 1", concerned, executed, writes)
	}
	b.is("f7", "new")
}

// TestPlain: errors name the destination, not the staged file of one try.
func TestPlain(t *testing.T) {
	inner := errors.New("/etc/nginx/.api.conf.zkagent-new-54CBU4A2B5CE:3: unknown directive in /etc/nginx/.api.conf.zkagent-new-54CBU4A2B5CE")
	err := plain(fmt.Errorf("check: %w", inner))
	if want := "check: /etc/nginx/api.conf:3: unknown directive in /etc/nginx/api.conf"; err.Error() != want || !errors.Is(err, inner) {
		t.Errorf("got %q, want %q", err, want)
	}
	if plain(inner).Error() == inner.Error() || plain(nil) != nil || !errors.Is(plain(os.ErrNotExist), os.ErrNotExist) {
		t.Error("plain changes what it must not")
	}
}
