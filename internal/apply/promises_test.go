package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// programs are commands that a test plays: what each does, and what ran.
type programs struct {
	mu  sync.Mutex // mu guards ran.
	ran []string
	do  func(args []string) error
}

func (p *programs) run(_ context.Context, c proc.Command) (proc.Result, error) {
	p.mu.Lock()
	p.ran = append(p.ran, strings.Join(c.Args, " "))
	p.mu.Unlock()
	if p.do == nil {
		return proc.Result{}, nil
	}
	return proc.Result{}, p.do(c.Args)
}

// took returns what ran since the last call.
func (p *programs) took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ran := p.ran
	p.ran = nil
	return ran
}

// newPlayBed is an apply bed whose commands are played.
func newPlayBed(t *testing.T) (*applyBed, *programs) {
	t.Helper()
	p := &programs{}
	b := newApplyBed(t)
	b.Options.Run = p.run
	return b, p
}

// crashAt makes a process of its own that ends when a command runs: the disk
// refuses everything from then on.
func crashAt(t *testing.T, b *applyBed, c Config, when string) {
	t.Helper()
	dead := false
	if f, ok := b.Fleet.(*fakeFleet); ok {
		f.dead = func() bool { return dead }
		defer func() { f.dead = nil }()
	}
	e := New(Options{AgentID: "a1", StateDir: b.StateDir, Fleet: b.Fleet, FS: &files.FS{Before: func(string, string) error {
		if dead {
			return errors.New("killed")
		}
		return nil
	}}, Run: func(_ context.Context, c proc.Command) (proc.Result, error) {
		if c.Args[0] == when {
			dead = true
		}
		if dead {
			return proc.Result{}, errors.New("killed")
		}
		return proc.Result{}, nil
	}})
	e.Recover([]Config{c})
	x := Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}})
	job := Job{Bundle: x, View: b.view, First: true}
	e.Join(&job)
	if r := e.Run(t.Context(), job); r.Err == nil {
		t.Fatal("the process was not killed")
	}
	e.Close()
}

// TestRecover_ChecksWhatWasSwapped: a process was killed in the middle of the
// check of files in place. The next one runs the check: it refuses them, and the
// old files come back and are reloaded.
func TestRecover_ChecksWhatWasSwapped(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"refused": true, "good": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, p := newPlayBed(t)
			c := b.file("web", `{{ key "web/v" }}`)
			c.Check = &CheckConfig{At: atSwapped, Command: argv("check")}
			c.Reload = &ReloadConfig{Command: argv("reload")}
			b.keys(map[string]string{"v": "1"})
			b.good(b.bundle(c))
			p.took()
			b.keys(map[string]string{"v": "2"})
			crashAt(t, b, c, "check")
			b.is("web", "2") // nobody could put it back
			p.do = func(args []string) error {
				if refused && args[0] == "check" && read(t, b.path("web")) == "2" {
					return errors.New("refused")
				}
				return nil
			}
			next := New(b.Options)
			next.Recover([]Config{c})
			b.Engine = next
			x := b.bundle(c)
			b.apply(x)
			want, ran := "2", "check,reload"
			if refused {
				want, ran = "1", "check,reload,check"
			}
			b.is("web", want)
			if got := strings.Join(p.took(), ","); got != ran {
				t.Errorf("ran %s, want %s", got, ran)
			}
			if next.pending.has("web") {
				t.Error("a reload is pending")
			}
		})
	}
}

// TestRecover_GoesBackUnread: a process was killed in the reload, and the host is
// to go back. The next process restores the old files before anything reads the
// new ones: they may kill it, too.
func TestRecover_GoesBackUnread(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload")}
	b.keys(map[string]string{"v": "1"})
	old := b.view
	b.good(b.bundle(c))
	b.keys(map[string]string{"v": "2"})
	crashAt(t, b, c, "reload")
	b.is("web", "2")
	var reads []string
	p.do = func([]string) error { reads = append(reads, read(t, b.path("web"))); return nil }
	b.Engine = New(b.Options)
	b.Recover([]Config{c})
	job := Job{Bundle: b.bundle(c).Bundle, View: old, First: true, Back: true}
	b.Join(&job)
	if r := b.Run(t.Context(), job); r.Err != nil {
		t.Error(r.Err)
	}
	b.is("web", "1")
	if !slices.Equal(reads, []string{"1"}) {
		t.Errorf("the program has read %v, want the old file once", reads)
	}
	if b.pending.has("web") {
		t.Error("a reload is pending")
	}
}

// TestRecover_RestoresWhatTheProgramRefuses: a process was killed in the reload.
// The next one reloads; when the program refuses, the old files come back.
func TestRecover_RestoresWhatTheProgramRefuses(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload")}
	b.keys(map[string]string{"v": "1"})
	b.good(b.bundle(c))
	b.keys(map[string]string{"v": "2"})
	crashAt(t, b, c, "reload")
	b.is("web", "2")
	p.do = func([]string) error {
		if read(t, b.path("web")) == "2" {
			return errors.New("refused")
		}
		return nil
	}
	b.Engine = New(b.Options)
	b.Recover([]Config{c})
	b.apply(b.bundle(c))
	b.is("web", "1")
	if b.pending.has("web") {
		t.Error("a reload is pending")
	}
}

// TestRecover_WithoutAReloadNothingIsPending kills between the swap and the end of
// a bundle of two files that has no reload.
func TestRecover_WithoutAReloadNothingIsPending(t *testing.T) {
	t.Parallel()
	b, _ := newPlayBed(t)
	c := b.file("one", `{{ key "web/v" }}`)
	c.Templates = append(c.Templates, b.file("two", `{{ key "web/v" }}`).Templates...)
	c.Check = &CheckConfig{At: atSwapped, Command: argv("check")}
	b.keys(map[string]string{"v": "1"})
	crashAt(t, b, c, "check")
	b.Engine = New(b.Options)
	b.Recover([]Config{c})
	if b.pending.has("one") {
		t.Error("a reload is pending, and there is none")
	}
	b.good(b.bundle(c))
	if files.Pending(b.journalDir(), "one") || b.pending.has("one") {
		t.Error("the change has no end")
	}
}

// TestRetain_ForgetsReloadsThatAreNoMore: the settings dropped the reload.
func TestRetain_ForgetsReloadsThatAreNoMore(t *testing.T) {
	t.Parallel()
	b, _ := newPlayBed(t)
	if err := errors.Join(b.pending.add("gone", "", false), b.pending.add("web", "", false)); err != nil {
		t.Fatal(err)
	}
	b.Retain([]Config{{Name: "gone"}, {Name: "web", Reload: &ReloadConfig{Command: argv("reload")}}})
	if b.pending.has("gone") || !b.pending.has("web") {
		t.Errorf("pending: %v", b.pending.All())
	}
}

// TestRun_PendingAfterARestoreIsTriedAgain: the program refuses the new files and
// cannot read the restored ones either. The retry reloads and swaps nothing.
func TestRun_PendingAfterARestoreIsTriedAgain(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload")}
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1"})
	b.good(x)
	p.do = func([]string) error { return errors.New("down") }
	b.keys(map[string]string{"v": "2"})
	r := b.apply(x)
	b.is("web", "1")
	if !r.ReloadOnly || r.Retry == 0 || !b.pending.has("web") {
		t.Fatalf("got %+v", r)
	}
	p.do = nil
	p.took()
	job := Job{Bundle: x.Bundle, View: b.view, Mode: ModeReload}
	b.Join(&job)
	if r := b.Run(t.Context(), job); r.Err != nil {
		t.Fatal(r.Err)
	}
	b.is("web", "1")
	if got := p.took(); !slices.Equal(got, []string{"reload"}) || b.pending.has("web") {
		t.Errorf("ran %v, pending: %v", got, b.pending.All())
	}
	if len(b.attempts.All()) != 0 {
		t.Errorf("after the retry: %+v", b.attempts.All())
	}
}

// TestRun_ForEachReloadsWhatChanged: of three elements one changes, then one
// goes.
func TestRun_ForEachReloadsWhatChanged(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	c := Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
		Name: "each", Contents: "{{ .Value }}", Destination: func(e *template.Each) (string, error) {
			if e == nil {
				return "", errors.New("there is no element")
			}
			return b.path(e.Key), nil
		},
	}}}
	c.Reload = &ReloadConfig{Command: command.Command{Text: "reload each", Args: func(v command.Vars) ([]string, error) {
		if v.Each == nil {
			return nil, errors.New("there is no element")
		}
		return []string{"reload", v.Each.Key}, nil
	}}}
	// With a check before the swap every file is staged, also an unchanged one.
	c.Check = &CheckConfig{At: "staged", Command: argv("check")}
	reloads := func() []string {
		return slices.DeleteFunc(p.took(), func(s string) bool { return s == "check" })
	}
	x := b.bundle(c)
	b.keys(map[string]string{"a": "1", "b": "1", "c": "1"})
	b.good(x)
	if got := reloads(); !slices.Equal(got, []string{"reload a", "reload b", "reload c"}) {
		t.Errorf("at first: %v", got)
	}
	b.keys(map[string]string{"a": "1", "b": "2", "c": "1"})
	b.good(x)
	if got := reloads(); !slices.Equal(got, []string{"reload b"}) {
		t.Errorf("one changed: %v", got)
	}
	b.keys(map[string]string{"a": "1", "b": "2"})
	b.good(x)
	if got := reloads(); len(got) != 0 {
		t.Errorf("one is gone: %v", got)
	}
	p.do = func(args []string) error {
		if args[0] == "check" {
			return nil
		}
		return errors.New("down")
	}
	c.Reload.OnFailure = onFailureKeep
	b.keys(map[string]string{"a": "3", "b": "2"})
	b.apply(x)
	p.do = nil
	p.took()
	b.good(x)
	if got := reloads(); !slices.Equal(got, []string{"reload a", "reload b"}) {
		t.Errorf("what is pending is not known: %v", got)
	}
}

// TestRun_ForEachLeavesOutHostileKeys: a key that is no name has no file, and a condition
// says so. The files of the other keys follow their data, and all is right again when the
// key is gone.
func TestRun_ForEachLeavesOutHostileKeys(t *testing.T) {
	t.Parallel()
	b, _ := newPlayBed(t)
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	x := b.bundle(Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
		Name: "each", Contents: "{{ .Value }}", Destination: func(e *template.Each) (string, error) { return b.path("f-" + e.Key), nil },
	}}})
	for _, key := range []string{"a b", ".x", "-rf", "$(id)", "a\u202eb", "`id`", "..", "a/b", "x;\"}{", strings.Repeat("k", 5000)} {
		b.keys(map[string]string{"good": key, key: "hostile", key + "|2": "hostile"})
		b.good(x)
		b.is("f-good", key)
		open := b.Conds.List()
		if len(open) != 1 || open[0].Name() != "name-refused template each" || len(open[0].Text) > 1000 || !strings.HasSuffix(open[0].Text, "; and 1 more") {
			t.Errorf("%q: the conditions are %+v", key, open)
		}
		b.keys(map[string]string{"good": "1"})
		b.good(x)
		if open := b.Conds.List(); len(open) != 0 {
			t.Errorf("%q is gone: the conditions are %+v", key, open)
		}
	}
}

// TestRun_ForEachFileAndDirectory: with allow_subdirs two keys want a file and a directory
// of one name. The one that is there stays, or the directory is made; the other one has a condition, and the files of
// other keys follow their data.
func TestRun_ForEachFileAndDirectory(t *testing.T) {
	t.Parallel()
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	for first, wants := range map[string]string{"a": "f-a/b", "a/b": "f-a", "": "f-a"} {
		b, _ := newPlayBed(t)
		x := b.bundle(Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
			Name: "each", Contents: "{{ .Value }}", AllowSubdirs: true, CreateDirs: true,
			Destination: func(e *template.Each) (string, error) { return b.path("f-" + e.Key), nil },
		}}})
		if first != "" {
			b.keys(map[string]string{first: "1", "good": "1"})
			b.good(x)
		}
		b.keys(map[string]string{"a": "1", "a/b": "1", "good": "2"})
		r := b.apply(x)
		open := b.Conds.List()
		has := fmt.Sprintf("%s of the key %q", b.path("f-"+cmp.Or(first, "a/b")), cmp.Or(first, "a/b"))
		if r.Err != nil || len(open) != 1 || open[0].Name() != "destination-taken "+b.path(wants) || !strings.Contains(open[0].Text, has) {
			t.Errorf("after %q: %v, the conditions are %+v", first, r.Err, open)
			continue
		}
		b.is("f-good", "2")
		b.is("f-"+cmp.Or(first, "a/b"), "1")
	}
}

// TestRun_ForEachKeysWithoutAFile: a key whose file cannot be there has no file, and a
// condition says why. The files of the other keys follow their data.
func TestRun_ForEachKeysWithoutAFile(t *testing.T) {
	t.Parallel()
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	for name, c := range map[string]struct {
		key, says string
		dirs      bool
		taken     string // is a link to nowhere
	}{
		"deep":              {key: strings.Repeat("d/", 2000) + "x", dirs: true, says: "more than 1024 bytes"},
		"missing directory": {key: "new/x", says: "does not exist"},
		"link on the way":   {key: "way/x", taken: "f-way", dirs: true, says: "not a directory"},
		"link to nowhere":   {key: "x", taken: "f-x", says: "does not exist"},
		"state directory":   {key: "/state/halts.json", says: "cannot be part"},
		"state":             {key: "state/halts.json", says: "the agent keeps its own files"},
	} {
		b, _ := newPlayBed(t)
		prefix := "f-"
		if name == "state" {
			prefix = ""
		}
		x := b.bundle(Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
			Name: "each", Contents: "{{ .Value }}", AllowSubdirs: true, CreateDirs: c.dirs,
			Destination: func(e *template.Each) (string, error) { return b.path(prefix + e.Key), nil },
		}}})
		b.keys(map[string]string{"good": "1"})
		b.good(x)
		if c.taken != "" {
			if err := os.Symlink(b.path("none/x"), b.path(c.taken)); err != nil {
				t.Fatal(err)
			}
		}
		b.keys(map[string]string{"good": "2", c.key: "hostile"})
		b.good(x)
		b.is(prefix+"good", "2")
		if open := b.Conds.List(); len(open) != 1 || !strings.Contains(open[0].Text, c.says) {
			t.Errorf("%s: the conditions are %+v", name, open)
		}
		b.keys(map[string]string{"good": "3"})
		b.good(x)
		if open := b.Conds.List(); len(open) != 0 {
			t.Errorf("%s: the key is gone: the conditions are %+v", name, open)
		}
	}
}

// TestRun_ForEachObstacleOfAGoneKey: what somebody else put in place of a file that is no
// longer wanted stays, and the files of the other keys follow their data.
func TestRun_ForEachObstacleOfAGoneKey(t *testing.T) {
	t.Parallel()
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	for name, put := range map[string]func(path string) error{
		"directory":   func(path string) error { return os.Mkdir(path, 0o700) },
		"link":        func(path string) error { return os.Symlink("/etc/hostname", path) },
		"circle":      func(path string) error { return os.Symlink(path, path) },
		"sparse file": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		b, _ := newPlayBed(t)
		x := b.bundle(Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
			Name: "each", Contents: "{{ .Value }}", Destination: func(e *template.Each) (string, error) { return b.path("f-" + e.Key), nil },
		}}})
		b.keys(map[string]string{"good": "1", "gone": "1"})
		b.good(x)
		if err := errors.Join(os.Remove(b.path("f-gone")), put(b.path("f-gone"))); err != nil {
			t.Fatal(err)
		}
		b.keys(map[string]string{"good": "2"})
		if r := b.apply(x); r.Err != nil {
			t.Errorf("%s: %v", name, r.Err)
		}
		b.is("f-good", "2")
		if list, _ := b.Events.Since(0); len(list) != 1 || list[0].Kind != "file-kept" || !exists(b.path("f-gone")) && name == "directory" {
			t.Errorf("%s: the events are %+v", name, list)
		}
	}
}

// TestRun_ForEachElementIsWhole: one file of an element cannot be there, so the element has
// none of its files, until the obstacle has gone.
func TestRun_ForEachElementIsWhole(t *testing.T) {
	t.Parallel()
	b, _ := newPlayBed(t)
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	c := Config{Name: "each", ForEach: &web}
	for _, name := range []string{"one", "two"} {
		c.Templates = append(c.Templates, FileConfig{
			Name: name, Contents: "{{ .Value }}", Destination: func(e *template.Each) (string, error) { return b.path(e.Key + "-" + name), nil },
		})
	}
	x := b.bundle(c)
	if err := os.Mkdir(b.path("new-two"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.keys(map[string]string{"good": "1", "new": "1"})
	b.good(x)
	if b.is("good-two", "1"); exists(b.path("new-one")) {
		t.Error("half of an element")
	}
	if err := os.Remove(b.path("new-two")); err != nil {
		t.Fatal(err)
	}
	b.keys(map[string]string{"good": "2", "new": "1"})
	b.good(x)
	b.is("new-one", "1")
	b.is("new-two", "1")
}

// TestRun_OneFailureLeavesNoMixture: a view changes two templates of a bundle,
// and one of them fails. The next view changes only that one: both files are of
// the new version.
func TestRun_OneFailureLeavesNoMixture(t *testing.T) {
	t.Parallel()
	b, _ := newPlayBed(t)
	c := b.file("one", `{{ key "web/v" }}`)
	c.Templates = append(c.Templates, b.file("two", `{{ key "web/w" | parseInt }}`).Templates...)
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1", "w": "1"})
	b.good(x)
	b.keys(map[string]string{"v": "2", "w": "no number"})
	b.bad(x, stageRender, "parseInt")
	b.keys(map[string]string{"v": "2", "w": "2"})
	x.failed = false // the loop tries a failed render again only with another view
	b.good(x)
	b.is("one", "2")
	b.is("two", "2")
}

// TestRun_FailedRestoreIsRenderedAnew: after a restore the next view is compared
// with what is in place, not with what was rendered last.
func TestRun_FailedReloadIsRenderedAnew(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	c := b.file("one", `{{ key "web/v" }}`)
	c.Templates = append(c.Templates, b.file("two", `{{ key "web/w" }}`).Templates...)
	c.Reload = &ReloadConfig{Command: argv("reload")}
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1", "w": "1"})
	b.good(x)
	p.do = func([]string) error {
		if read(t, b.path("two")) == "bad" {
			return errors.New("refused")
		}
		return nil
	}
	b.keys(map[string]string{"v": "2", "w": "bad"})
	b.bad(x, stageReload, "refused")
	b.is("one", "1")
	b.keys(map[string]string{"v": "2", "w": "1"})
	x.failed = false
	b.good(x)
	b.is("one", "2")
}

// TestTry_LeavesTheFilesOfAnApply: a vote runs while an apply has its files
// staged, and the first apply of a process while a vote has.
func TestTry_LeavesTheFilesOfAnApply(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Check = &CheckConfig{At: "staged", Command: command.Command{Args: func(v command.Vars) ([]string, error) { return []string{"check", v.Staged}, nil }}}
	b.keys(map[string]string{"v": "1"})
	vote := 0
	p.do = func(args []string) error {
		if _, err := os.Stat(args[1]); err != nil {
			return err
		}
		if vote++; vote == 1 {
			if err := b.Try(t.Context(), b.bundle(c).Bundle, b.view); err != nil {
				return fmt.Errorf("vote: %w", err)
			}
		}
		_, err := os.Stat(args[1])
		return err
	}
	b.good(b.bundle(c))
	b.is("web", "1")
	vote = 10
	p.do = func(args []string) error {
		if vote++; vote == 11 {
			if r := b.apply(b.bundle(c)); r.Err != nil {
				return fmt.Errorf("apply: %w", r.Err)
			}
		}
		_, err := os.Stat(args[1])
		return err
	}
	b.keys(map[string]string{"v": "2"})
	if err := b.Try(t.Context(), b.bundle(c).Bundle, b.view); err != nil {
		t.Error(err)
	}
}

// fakeFleet hands out permits and notes what becomes of them.
type fakeFleet struct {
	Fleet

	bed      *applyBed
	mu       sync.Mutex // mu guards steps.
	steps    []string
	wait     func(ctx context.Context) error
	halt     bool        // stands
	dead     func() bool // the process was killed; nil: it was not
	reported *Halt       // that the others know of
}

func (f *fakeFleet) note(format string, args ...any) {
	step := fmt.Sprintf(format, args...) + " " + read(f.bed.t, f.bed.path("web"))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, step)
}

func (f *fakeFleet) Permit(ctx context.Context, _ string, _ *RollingConfig, halted func()) (func(*Halt) error, error) {
	if f.halt {
		f.note("halted")
		if halted != nil {
			halted()
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if f.wait != nil {
		if err := f.wait(ctx); err != nil {
			return nil, err
		}
	}
	f.note("permit")
	return func(failed *Halt) error {
		switch {
		case f.dead != nil && f.dead():
			return errors.New("killed")
		case failed != nil:
			f.note("halt")
			f.reported = failed
		default:
			f.note("release")
		}
		return nil
	}, nil
}

// rollingBed is a bundle with a rolling reload.
func rollingBed(t *testing.T) (*applyBed, *programs, *fakeFleet, Config) {
	t.Helper()
	b, p := newPlayBed(t)
	f := &fakeFleet{bed: b}
	b.Fleet = f
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{Command: argv("reload"), Rolling: &RollingConfig{Permits: "1", PostCheck: argv("post_check")}}
	p.do = func(args []string) error { f.note("%s", args[0]); return nil }
	return b, p, f, c
}

// TestPermit_CoversEverything: the permit comes before the swap, and is held
// through reload and post_check.
func TestPermit_CoversEverything(t *testing.T) {
	t.Parallel()
	b, _, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	b.good(b.bundle(c))
	if got, want := strings.Join(f.steps, ", "), "permit , reload 1, post_check 1, release 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPermit_HaltsAfterAFailedPostCheck: the old file is back and read before
// the permit is given back, and the fleet is halted.
func TestPermit_HaltsAfterAFailedPostCheck(t *testing.T) {
	t.Parallel()
	b, p, f, c := rollingBed(t)
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1"})
	b.good(x)
	f.steps = nil
	p.do = func(args []string) error {
		f.note("%s", args[0])
		if args[0] == "post_check" {
			return errors.New("no answer")
		}
		return nil
	}
	b.keys(map[string]string{"v": "2"})
	b.bad(x, stageReload, "no answer; the old files are in use again")
	if got, want := strings.Join(f.steps, ", "), "permit 1, reload 2, post_check 2, reload 1, halt 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if b.pending.has("web") {
		t.Error("a reload is pending")
	}
}

// TestPermit_KilledHostGoesBackWhileHalted: a host is killed in its reload, and another
// one halts the bundle. The next process puts the old file back, has the program read
// it, and waits.
func TestPermit_KilledHostGoesBackWhileHalted(t *testing.T) {
	t.Parallel()
	b, _, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	b.good(b.bundle(c))
	b.keys(map[string]string{"v": "2"})
	plain := c
	plain.Reload = &ReloadConfig{Command: c.Reload.Command}
	crashAt(t, b, plain, "reload")
	b.is("web", "2")
	f.steps, f.halt = nil, true
	next := New(b.Options)
	next.Recover([]Config{c})
	x := Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}})
	ctx, cancel := context.WithCancel(t.Context())
	job := Job{Bundle: x, View: b.view, First: true, Newest: func() view.View { return b.view }}
	done := make(chan Result, 1)
	next.Join(&job)
	go func() { done <- next.Run(ctx, job) }()
	eventually(t, "the host to wait", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.Count(strings.Join(f.steps, ","), "halted") == 2
	})
	cancel()
	<-done
	if got, want := strings.Join(f.steps, ", "), "halted 2, reload 1, halted 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.is("web", "1")
	if next.pending.has("web") {
		t.Error("a reload is pending")
	}
	next.Close()
}

// TestPermit_PostCheckRunsAfterThePause, and not before it.
func TestPermit_PostCheckRunsAfterThePause(t *testing.T) {
	b, p, _, c := rollingBed(t)
	c.Reload.Rolling.Pause = time.Hour
	b.keys(map[string]string{"v": "1"})
	x := b.bundle(c)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := map[string]time.Duration{}
		p.do = func(args []string) error { at[args[0]] = time.Since(began); return nil }
		job := Job{Bundle: x.Bundle, View: b.view, First: true}
		b.Join(&job)
		if r := b.Run(t.Context(), job); r.Err != nil {
			t.Error(r.Err)
		}
		if at["post_check"]-at["reload"] < time.Hour {
			t.Errorf("got %v", at)
		}
	})
}

// TestPermit_TakesTheNewestView: while the host waits for its turn another
// version comes. The host skips the stale one.
func TestPermit_TakesTheNewestView(t *testing.T) {
	t.Parallel()
	b, p, f, c := rollingBed(t)
	x := b.bundle(c)
	b.keys(map[string]string{"v": "1"})
	stale := b.view
	f.wait = func(context.Context) error { b.keys(map[string]string{"v": "2"}); return nil }
	job := Job{Bundle: x.Bundle, View: stale, First: true, Newest: func() view.View { return b.view }}
	b.Join(&job)
	r := b.Run(t.Context(), job)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	b.is("web", "2")
	if tree, _ := r.View.Tree("web"); tree == nil || string(mustKey(tree, "v")) != "2" {
		t.Error("the result is about another view")
	}
	if got := p.took(); !slices.Equal(got, []string{"reload", "post_check"}) {
		t.Errorf("ran %v", got)
	}
}

func mustKey(t *view.Tree, path string) []byte {
	k, _ := t.Get(path)
	return k.Value
}

// TestPermit_EndsWithTheSettings: a bundle that waits for its turn does not hold
// up its successor.
func TestPermit_EndsWithTheSettings(t *testing.T) {
	t.Parallel()
	b, _, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	replaced, replace := context.WithCancel(t.Context())
	f.wait = func(ctx context.Context) error { replace(); <-ctx.Done(); return context.Cause(ctx) }
	job := Job{Bundle: b.bundle(c).Bundle, View: b.view, First: true, Replaced: replaced}
	b.Join(&job)
	if r := b.Run(t.Context(), job); !errors.Is(r.Err, errReplaced) || r.Stage != stagePermit {
		t.Errorf("got %v at %s", r.Err, r.Stage)
	}
	b.is("web", "")
}

// TestPermit_NotInATurn: in a turn of a rollout a bundle asks for no permit, and
// its failure halts nothing.
func TestPermit_NotInATurn(t *testing.T) {
	t.Parallel()
	b, p, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	p.do = func(args []string) error {
		f.note("%s", args[0])
		return errors.New("no answer")
	}
	granted, grant := context.WithCancel(t.Context())
	grant()
	job := Job{Bundle: b.bundle(c).Bundle, View: b.view, First: true, Granted: granted}
	b.Join(&job)
	if r := b.Run(t.Context(), job); r.Err == nil || r.Stage != stageReload {
		t.Errorf("got %v at %s, want a failed reload", r.Err, r.Stage)
	}
	if got, want := strings.Join(f.steps, ", "), "reload 1, reload "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPermit_TurnEndsTheWait: a turn begins while a bundle waits for its permit,
// in vain or not, or when it has it. The bundle goes on with the version of the turn, without a
// permit, and its failure halts nothing.
func TestPermit_TurnEndsTheWait(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx context.Context) error{
		"halted": func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		"came":   func(context.Context) error { return nil },
		"has":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, p, f, c := rollingBed(t)
			b.keys(map[string]string{"v": "1"})
			stale := b.view
			p.do = func(args []string) error {
				f.note("%s", args[0])
				return errors.New("no answer")
			}
			granted, grant := context.WithCancel(t.Context())
			begin := func() {
				b.keys(map[string]string{"v": "2"})
				grant()
			}
			newest := func() view.View { return b.view }
			if wait != nil {
				f.wait = func(ctx context.Context) error { begin(); return wait(ctx) }
			} else {
				newest = func() view.View { begin(); return b.view }
			}
			job := Job{Bundle: b.bundle(c).Bundle, View: stale, First: true, Granted: granted, Newest: newest}
			b.Join(&job)
			if r := b.Run(t.Context(), job); r.Err == nil || r.Stage != stageReload {
				t.Errorf("got %v at %s, want a failed reload", r.Err, r.Stage)
			}
			want := "reload 2, reload "
			if name != "halted" {
				want = "permit , release , " + want
			}
			if got := strings.Join(f.steps, ", "); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestPermit_StopInAWait: an agent that stops while a bundle waits for its permit
// changes nothing.
func TestPermit_StopInAWait(t *testing.T) {
	t.Parallel()
	b, _, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	ctx, stop := context.WithCancel(t.Context())
	granted, grant := context.WithCancel(context.WithoutCancel(ctx))
	f.wait = func(ctx context.Context) error { stop(); grant(); <-ctx.Done(); return context.Cause(ctx) }
	job := Job{Bundle: b.bundle(c).Bundle, View: b.view, First: true, Granted: granted}
	b.Join(&job)
	if r := b.Run(ctx, job); r.Err == nil || r.Stage != stagePermit {
		t.Errorf("got %v at %s", r.Err, r.Stage)
	}
	b.is("web", "")
}

// TestReloads_SharedByRestoreAndKeep: one command, two bundles. The one that
// restores gets its old files back. The other one keeps its new file, which the
// last run has read.
func TestReloads_SharedByRestoreAndKeep(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	one, two := b.file("one", `{{ key "web/v" }}`), b.file("two", `{{ key "web/v" }}`)
	one.Reload = &ReloadConfig{Command: argv("reload")}
	two.Reload = &ReloadConfig{Command: argv("reload"), OnFailure: onFailureKeep}
	x, y := b.bundle(one), b.bundle(two)
	b.keys(map[string]string{"v": "1"})
	b.good(x)
	b.good(y)
	p.do = func([]string) error {
		if read(t, b.path("one")) == "2" {
			return errors.New("refused")
		}
		return nil
	}
	b.keys(map[string]string{"v": "2"})
	jobs := []*Job{{Bundle: x.Bundle, View: b.view}, {Bundle: y.Bundle, View: b.view}}
	b.Join(jobs...)
	results := make([]Result, 2)
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() { results[i] = b.Run(t.Context(), *j) })
	}
	wg.Wait()
	b.is("one", "1")
	b.is("two", "2")
	if results[0].Err == nil || results[1].Err != nil {
		t.Errorf("got %v and %v", results[0].Err, results[1].Err)
	}
	if pending := b.pending.All(); len(pending) != 0 {
		t.Errorf("pending: %v", pending)
	}
}

// TestReloads_ApartFromUncheckedFiles: while the files of one bundle are in place
// and not yet checked, the reload of another one with the same command waits.
func TestReloads_ApartFromUncheckedFiles(t *testing.T) {
	t.Parallel()
	b, p := newPlayBed(t)
	one, two := b.file("one", `{{ key "web/v" }}`), b.file("two", `{{ key "web/v" }}`)
	one.Check = &CheckConfig{At: atSwapped, Command: argv("check")}
	one.Reload, two.Reload = &ReloadConfig{Command: argv("reload")}, &ReloadConfig{Command: argv("reload")}
	x, y := b.bundle(one), b.bundle(two)
	b.keys(map[string]string{"v": "1"})
	checking, checked, reloaded := make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)
	p.do = func(args []string) error {
		if args[0] == "check" {
			close(checking)
			<-checked
			return errors.New("refused")
		}
		if got := read(t, b.path("one")); got != "" {
			t.Errorf("the program reads %q, which no check has passed", got)
		}
		reloaded <- struct{}{}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { b.apply(x) })
	<-checking
	// The job of the second bundle begins on its own: the first one's request
	// for a reload does not hold it up.
	job := Job{Bundle: y.Bundle, View: b.view, First: true}
	job.key = "another queue"
	b.reloads.join(job.key)
	b.reloads.queues[job.key].key = x.reloadKey()
	wg.Go(func() { b.Run(t.Context(), job) })
	eventually(t, "the second file", func() bool { return read(t, b.path("two")) == "1" || len(reloaded) > 0 })
	if pace.Sleep(t.Context(), 50*time.Millisecond); len(reloaded) > 0 {
		t.Error("a reload ran while files were unchecked")
	}
	close(checked)
	wg.Wait()
}
