package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// previewBed is a directory whose names hold what separates mount options.
type previewBed struct {
	t   *testing.T
	dir string
	way PreviewWay
}

// inEachWay runs a test with each way of previews that this host allows.
func inEachWay(t *testing.T, test func(t *testing.T, b previewBed)) {
	t.Helper()
	for _, way := range []PreviewWay{PreviewMounts, PreviewUser} {
		t.Run(way.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a dir:with,all\\of it")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			b := previewBed{t, dir, way}
			probe := Preview{Files: []PreviewFile{b.file("probe", "x")}}
			if _, err := runPreview(t.Context(), Command{Preview: &probe}, way); err != nil {
				t.Skipf("no preview by %s here: %v", way, err)
			}
			test(t, b)
		})
	}
}

func (b previewBed) file(name, data string) PreviewFile {
	return PreviewFile{Path: filepath.Join(b.dir, name), Data: []byte(data), Mode: 0o640, UID: -1, GID: -1}
}

func (b previewBed) put(name, data string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(data), 0o644)); err != nil {
		b.t.Fatal(err)
	}
}

// sees runs a script in the preview of some files and returns what it printed.
func (b previewBed) sees(p Preview, script string) string {
	b.t.Helper()
	r, err := runPreview(b.t.Context(), Command{Args: []string{"sh", "-c", script}, Dir: b.dir, Preview: &p}, b.way)
	if err != nil {
		b.t.Fatalf("%v: %+v", err, r)
	}
	return strings.TrimSpace(r.Output)
}

// snapshot is all that is in the directory.
func (b previewBed) snapshot() string {
	b.t.Helper()
	var s strings.Builder
	err := filepath.WalkDir(b.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		data, _ := os.ReadFile(path)
		fmt.Fprintf(&s, "%s %s %v %q\n", path, info.Mode(), info.ModTime(), data)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s.String()
}

func TestPreview_NewChangedAndRemovedFiles(t *testing.T) {
	inEachWay(t, func(t *testing.T, b previewBed) {
		b.put("same", "same")
		b.put("changed", "old")
		b.put("removed", "old")
		b.put(".staged", "new")
		b.put("sub/changed", "old")
		b.put("sub/same", "same")
		if err := os.Symlink("sub", filepath.Join(b.dir, "link")); err != nil {
			t.Fatal(err)
		}
		before := b.snapshot()
		gone := b.file("removed", "")
		gone.Gone = true
		p := Preview{
			Files: []PreviewFile{b.file("changed", "new"), b.file("added", "new"), gone, b.file("link/changed", "new"), b.file("made/deep/file", "new")},
			Hide:  []string{filepath.Join(b.dir, ".staged")},
		}
		got := b.sees(p, `for f in $(find . -type f | sort); do echo "$f=$(cat $f)"; done; stat -c %a changed; touch written same; rm sub/same; pwd`)
		want := "./added=new\n./changed=new\n./made/deep/file=new\n./same=same\n./sub/changed=new\n./sub/same=same\n640\n" + b.dir
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if after := b.snapshot(); after != before {
			t.Errorf("outside something changed:\n%s\nwas\n%s", after, before)
		}
		if mounts, err := mountPoints(); err != nil || strings.Contains(strings.Join(mounts, "\n"), b.dir) {
			t.Errorf("mounts are left: %v, %v", mounts, err)
		}
	})
}

func TestPreview_EndsWithItsCommand(t *testing.T) {
	inEachWay(t, func(t *testing.T, b previewBed) {
		mark := filepath.Join(t.TempDir(), "alive")
		p := Preview{Files: []PreviewFile{b.file("f", "x")}}
		b.sees(p, fmt.Sprintf(`(setsid sh -c 'while :; do : >>%s; sleep 0.05; done' >/dev/null 2>&1 </dev/null &) ; while ! test -e %s; do sleep 0.01; done`, mark, mark))
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // real: what must not happen has this long to happen
		if _, err := os.Stat(mark); err == nil {
			t.Error("a daemon of the command lives")
		}
	})
}

func TestPreview_HowTheCommandEnds(t *testing.T) {
	inEachWay(t, func(t *testing.T, b previewBed) {
		p := &Preview{Files: []PreviewFile{b.file("f", "x")}}
		run := func(timeout time.Duration, args ...string) (Result, error) {
			ctx := t.Context()
			c := Command{Args: args, Preview: p, Timeout: timeout, Grace: 200 * time.Millisecond}
			return runIn(ctx, c, b.way)
		}
		r, err := run(0, "sh", "-c", "echo bad >&2; exit 7")
		if _, ok := errors.AsType[*ExitError](err); !ok || r.Code != 7 || r.Output != "bad\n" {
			t.Errorf("exit 7: %+v, %v", r, err)
		}
		if r, err = run(0, "sh", "-c", "kill -9 $$"); r.Signal != "SIGKILL" {
			t.Errorf("killed: %+v, %v", r, err)
		}
		if _, err = run(0, "/nowhere/at/all"); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("no program: %v", err)
		}
		if r, err = run(100*time.Millisecond, "sh", "-c", "trap '' TERM; sleep 60"); !r.TimedOut {
			t.Errorf("timeout: %+v, %v", r, err)
		}
		p = &Preview{Files: []PreviewFile{{Path: "/proc/none/f", Mode: 0o644}}}
		if _, err = run(0, "true"); err == nil {
			t.Error("a preview below /proc")
		}
	})
}

func TestPreview_MountsBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	inEachWay(t, func(t *testing.T, b previewBed) {
		b.put("sub/below", "hidden")
		b.put("other/seen", "seen")
		b.put("single", "old")
		b.put("source", "mounted")
		bind := func(from, to string) {
			t.Helper()
			if err := unix.Mount(filepath.Join(b.dir, from), filepath.Join(b.dir, to), "", unix.MS_BIND, ""); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(filepath.Join(b.dir, to), unix.MNT_DETACH) })
		}
		bind("other", "sub")
		bind("source", "single")
		if got := b.sees(Preview{Files: []PreviewFile{b.file("f", "new"), b.file("single", "new"), b.file("sub/f", "new")}}, `cat f single sub/f sub/seen`); got != "newnewnewseen" {
			t.Errorf("got %q", got)
		}
		if got, _ := os.ReadFile(filepath.Join(b.dir, "other/f")); got != nil {
			t.Errorf("outside there is a file: %q", got)
		}
		if got, _ := os.ReadFile(filepath.Join(b.dir, "source")); string(got) != "mounted" {
			t.Errorf("outside: %q", got)
		}
	})
}

func TestPreview_OnAReadOnlyMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	inEachWay(t, func(t *testing.T, b previewBed) {
		b.put("f", "old")
		if err := unix.Mount(b.dir, b.dir, "", unix.MS_BIND, ""); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(b.dir, unix.MNT_DETACH) })
		if err := unix.Mount("", b.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if got := b.sees(Preview{Files: []PreviewFile{b.file("f", "new")}}, "cat f"); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// A directory with an overlay of its own below cannot take a third one: it is copied.
func TestPreview_OnOverlays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	inEachWay(t, func(t *testing.T, b previewBed) {
		b.put("f", "old")
		b.put("g", "same")
		if err := os.Symlink("g", filepath.Join(b.dir, "link")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			up := t.TempDir()
			for _, d := range []string{"up", "work"} {
				if err := os.Mkdir(filepath.Join(up, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(b.dir)
			if err := unix.Mount("overlay", b.dir, "overlay", 0, fmt.Sprintf("lowerdir=.,upperdir=%s/up,workdir=%s/work", up, up)); err != nil {
				t.Skip(err)
			}
			t.Chdir("/")
			t.Cleanup(func() { _ = unix.Unmount(b.dir, unix.MNT_DETACH) })
		}
		if got := b.sees(Preview{Files: []PreviewFile{b.file("f", "new")}}, "cat f g link; touch x"); got != "newsamesame" {
			t.Errorf("got %q", got)
		}
		if _, err := os.Stat(filepath.Join(b.dir, "x")); err == nil {
			t.Error("the command wrote outside")
		}
	})
}

// An ordinary user has a preview, too, and is the same user in it.
func TestPreview_OrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changes the user")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "zkagent-user-") //nolint:usetesting // another user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	data, err := os.ReadFile(exe)
	if err := errors.Join(err, os.WriteFile(program, data, 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PREVIEW_TEST_CHILD") != "" {
		t.Skip("the child")
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run", "^TestPreview_(NewChanged|EndsWith|HowThe|User)", "-test.v")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestPreview_NewChangedAndRemovedFiles/a_user_namespace") {
		t.Errorf("%v: %s", err, out)
	}
}

// The command in a user namespace is the agent's user, without rights.
func TestPreview_UserAndRights(t *testing.T) {
	inEachWay(t, func(t *testing.T, b previewBed) {
		got := b.sees(Preview{Files: []PreviewFile{b.file("f", "x")}}, "id -u; grep CapEff /proc/self/status")
		uid, caps, _ := strings.Cut(got, "\n")
		if uid != fmt.Sprint(os.Geteuid()) {
			t.Errorf("uid %s", uid)
		}
		if os.Geteuid() != 0 && caps != "CapEff:\t0000000000000000" {
			t.Errorf("rights %s", caps)
		}
	})
}

// A process that is killed takes its preview along: the command, and what it started.
func TestPreview_EndsWithTheProcessThatMadeIt(t *testing.T) {
	inEachWay(t, func(t *testing.T, b previewBed) {
		run, err := newChild("", previewArg, previewAttr(b.way))
		if err != nil {
			t.Fatal(err)
		}
		mark := filepath.Join(t.TempDir(), "pid")
		c := Command{Args: sh("sleep 1000 & echo >" + mark + "; wait")}
		out, err := start(run.cmd, c)
		if err := run.started(err, nil); err != nil {
			t.Fatal(err)
		}
		err = run.orders.Encode(spec{
			Preview: Preview{Files: []PreviewFile{b.file("f", "x")}}, Args: c.Args, Env: CleanEnv(nil), User: b.way == PreviewUser,
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command to run", func() bool { _, err := os.Stat(mark); return err == nil })
		// What the kernel does for a killed process: its end of the pipe is closed.
		if err := run.control.Close(); err != nil {
			t.Fatal(err)
		}
		_ = run.cmd.Wait() // the first process of the namespace: no other one outlives it
		if _, err := out.r.Read(make([]byte, 1)); err == nil {
			t.Error("somebody still holds the output")
		}
		out.finish(&Result{})
		_, _ = run.end(c, nil)
	})
}

// BenchmarkPreview is one check in a directory of other files.
func BenchmarkPreview(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		dir := b.TempDir()
		for i := range n {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("x"), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		p := &Preview{Files: []PreviewFile{{Path: filepath.Join(dir, "f"), Data: []byte("x"), Mode: 0o600, UID: -1, GID: -1}}}
		for _, way := range []PreviewWay{NoPreview, PreviewMounts, PreviewUser} {
			b.Run(fmt.Sprintf("%d files, %s", n, way), func(b *testing.B) {
				for b.Loop() {
					if _, err := runIn(b.Context(), Command{Args: []string{"true"}, Preview: p}, way); err != nil {
						b.Skip(err)
					}
				}
			})
		}
	}
}

// A directory that is copied may have a file of any size that somebody else put there.
func TestCopyDir_Bounded(t *testing.T) {
	for _, name := range []string{"sparse", "small"} {
		from, to := t.TempDir(), t.TempDir()
		path := filepath.Join(from, "x")
		err := errors.Join(os.WriteFile(path, []byte("text"), 0o600), syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600), os.Symlink("x", filepath.Join(from, "link")))
		if name == "sparse" {
			err = errors.Join(err, os.Truncate(path, 1<<40))
		}
		if err != nil {
			t.Fatal(err)
		}
		err = CopyDir(from, to, true)
		data, _ := os.ReadFile(filepath.Join(to, "link"))
		if small := name == "small"; small != (err == nil) || small != (string(data) == "text") {
			t.Errorf("%s: %v, %q", name, err, data)
		}
	}
}

// Others make and remove files in a directory that is copied: what has gone meanwhile is not
// there, and ends no copy.
func TestCopyDir_WhileFilesComeAndGo(t *testing.T) {
	t.Parallel()
	from, stop := t.TempDir(), make(chan struct{})
	if err := os.WriteFile(filepath.Join(from, "z"), []byte("stays"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := filepath.Join(from, fmt.Sprintf("%d-%d", i, n%50))
				switch n % 4 {
				case 0:
					_ = os.WriteFile(name, nil, 0o600)
				case 1:
					_ = os.MkdirAll(filepath.Join(name, "d"), 0o700)
				default:
					_ = os.Symlink("/etc/passwd", name)
				}
				_ = os.RemoveAll(filepath.Join(from, fmt.Sprintf("%d-%d", i, (n+25)%50)))
			}
		})
	}
	for range 60 {
		to := t.TempDir()
		if err := CopyDir(from, to, true); err != nil {
			t.Error(err)
			break
		}
		if data, err := os.ReadFile(filepath.Join(to, "z")); err != nil || string(data) != "stays" {
			t.Errorf("got %q, %v", data, err)
		}
		_ = os.RemoveAll(to)
	}
	close(stop)
	all.Wait()
}
