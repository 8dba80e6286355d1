package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// A failure in a turn of a rolling reload: what fails, by its command. The file "2" is
// bad, and "1" is good.
var failures = map[string]struct {
	fails string
	keep  bool
	steps string
}{
	"check":      {fails: "check", steps: "permit 1, check 2, halt 1"},
	"reload":     {fails: "reload", steps: "permit 1, check 2, reload 2, reload 1, halt 1"},
	"kept":       {fails: "reload", keep: true, steps: "permit 1, check 2, reload 2, halt 2"},
	"post_check": {fails: "post_check", steps: "permit 1, check 2, reload 2, post_check 2, reload 1, halt 1"},
}

// failingBed is a bundle with a rolling reload of which "1" is in place; "2" fails.
func failingBed(t *testing.T, fails string, keep bool) (*applyBed, *programs, *fakeFleet, Config) {
	t.Helper()
	b, p, f, c := rollingBed(t)
	c.Check = &CheckConfig{At: atSwapped, Command: argv("check")}
	if keep {
		c.Reload.OnFailure = onFailureKeep
	}
	b.keys(map[string]string{"v": "1"})
	b.good(b.bundle(c))
	f.steps = nil
	b.keys(map[string]string{"v": "2"})
	p.do = func(args []string) error {
		f.note("%s", args[0])
		if args[0] == fails && read(t, b.path("web")) == "2" {
			return &proc.ExitError{Program: args[0], Result: proc.Result{Code: 1, Output: "a secret"}}
		}
		return nil
	}
	return b, p, f, c
}

// TestHalt_AfterEveryFailure: whatever fails after the swap halts the other hosts, after
// the old file is back. The reason holds no output.
func TestHalt_AfterEveryFailure(t *testing.T) {
	t.Parallel()
	for name, kind := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, f, c := failingBed(t, kind.fails, kind.keep)
			if r := b.apply(b.bundle(c)); r.Err == nil {
				t.Error("the apply has not failed")
			}
			if got := strings.Join(f.steps, ", "); got != kind.steps {
				t.Errorf("got  %s\nwant %s", got, kind.steps)
			}
			if f.reported == nil || strings.Contains(f.reported.Reason, "secret") || len(b.Halts()) > 0 {
				t.Errorf("told %+v, noted %v", f.reported, b.Halts())
			}
		})
	}
}

// TestHalt_KilledBetweenAnyTwoCalls: the host is killed after a command has failed.
// When its next process starts, the others are halted, the failure is noted, or the new
// file is in place and unfinished, so that it fails again.
func TestHalt_KilledBetweenAnyTwoCalls(t *testing.T) {
	t.Parallel()
	for name, kind := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				b, p, f, c := failingBed(t, kind.fails, kind.keep)
				calls := -1 // -1: no command has failed yet
				killed := func() bool { return calls >= n }
				o := b.Options
				o.FS = &files.FS{Before: func(string, string) error {
					if calls >= 0 {
						calls++
					}
					if killed() {
						return errors.New("killed")
					}
					return nil
				}}
				o.Run = func(ctx context.Context, cmd proc.Command) (proc.Result, error) {
					if killed() {
						return proc.Result{}, errors.New("killed")
					}
					r, err := p.run(ctx, cmd)
					if err != nil && calls < 0 {
						calls = 0
					}
					return r, err
				}
				f.dead = killed
				e := New(o)
				e.Recover([]Config{c})
				job := Job{Bundle: Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}}), View: b.view, First: true}
				e.Join(&job)
				if r := e.Run(t.Context(), job); r.Err == nil {
					t.Fatal("the apply has not failed")
				}
				if !killed() {
					if n < 5 {
						t.Errorf("only %d calls", n-1)
					}
					return
				}
				next := New(b.Options)
				unfinished := read(t, b.path("web")) == "2" && files.Pending(next.journalDir(), "web")
				if f.reported == nil && next.Halts()["web"].Reason == "" && !unfinished {
					t.Errorf("call %d: %q is in place, and the other hosts never learn of the failure", n, read(t, b.path("web")))
				}
			}
		})
	}
}

// afterRestart is the next process, while the bundle is halted. It waits until it has
// asked for its permit, and returns the steps.
func afterRestart(t *testing.T, b *applyBed, f *fakeFleet, c Config) string {
	t.Helper()
	f.steps, f.halt, f.dead = nil, true, nil
	next := New(b.Options)
	next.Recover([]Config{c})
	ctx, cancel := context.WithCancel(t.Context())
	job := Job{Bundle: Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}}), View: b.view, First: true}
	done := make(chan Result, 1)
	next.Join(&job)
	go func() { done <- next.Run(ctx, job) }()
	eventually(t, "the host to wait with its old file", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.steps) > 0 && f.steps[len(f.steps)-1] == "halted 1"
	})
	if l := New(Options{StateDir: b.StateDir}).attempts; len(l.All()) != 0 {
		t.Errorf("a kill in this wait counts: %+v", l.All())
	}
	cancel()
	<-done
	next.Close()
	if next.pending.has("web") {
		t.Error("a reload is pending")
	}
	return strings.Join(f.steps, ", ")
}

// TestHalt_OldFilesAreReadWithoutAPermit: the old file came back, and the program could
// not read it, or the host was killed before. The next process makes it read the old
// file although the bundle is halted.
func TestHalt_OldFilesAreReadWithoutAPermit(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]bool{"killed": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, p, f, c := failingBed(t, "reload", false)
			dead := false
			o := b.Options
			o.FS = &files.FS{Before: func(string, string) error {
				if dead {
					return errors.New("killed")
				}
				return nil
			}}
			o.Run = func(ctx context.Context, cmd proc.Command) (proc.Result, error) {
				if r, err := p.run(ctx, cmd); err != nil || cmd.Args[0] != "reload" {
					return r, err
				}
				dead = kill
				return proc.Result{}, errors.New("refused")
			}
			f.dead = func() bool { return dead }
			e := New(o)
			e.Recover([]Config{c})
			job := Job{Bundle: Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}}), View: b.view, First: true}
			e.Join(&job)
			if r := e.Run(t.Context(), job); r.Err == nil {
				t.Fatal("the apply has not failed")
			}
			b.is("web", "1")
			if got, want := afterRestart(t, b, f, c), "reload 1, halted 1"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestHalt_RecoveredChangeIsRefused: a host was killed in its check. The next process
// runs it: it refuses the file. The host halts the others, and does not start again.
func TestHalt_RecoveredChangeIsRefused(t *testing.T) {
	t.Parallel()
	b, _, f, c := failingBed(t, "check", false)
	unbound := c
	unbound.Reload = &ReloadConfig{Command: c.Reload.Command}
	crashAt(t, b, unbound, "check")
	b.is("web", "2")
	f.steps = nil
	f.wait = func(context.Context) error {
		if f.reported != nil {
			return errors.New("halted")
		}
		return nil
	}
	next := New(b.Options)
	next.Recover([]Config{c})
	b.Engine = next
	r := b.apply(b.bundle(c))
	if r.Stage != stagePermit {
		t.Errorf("got %v at %s", r.Err, r.Stage)
	}
	if got, want := strings.Join(f.steps, ", "), "permit 2, check 2, reload 1, halt 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.is("web", "1")
}

// TestHalts_OfBundlesThatAreNoMore go with their bundle.
func TestHalts_OfBundlesThatAreNoMore(t *testing.T) {
	t.Parallel()
	b, _, _, c := rollingBed(t)
	for i, name := range []string{"web", "gone"} {
		if err := b.halts.Set(name, Halt{Reason: fmt.Sprint(i)}, files.WriteSave); err != nil {
			t.Fatal(err)
		}
	}
	next := New(b.Options)
	next.Recover([]Config{c})
	if h := next.Halts(); len(h) != 1 || h["web"].Reason != "0" {
		t.Errorf("got %v", h)
	}
}

// TestHalt_NotForANoteOfOurs: the program has read the new file, and the disk is full
// then. The host tries again, and the others go on.
func TestHalt_NotForANoteOfOurs(t *testing.T) {
	t.Parallel()
	b, p, f, c := failingBed(t, "nothing", false)
	full := false
	b.FS = &files.FS{Before: func(string, string) error {
		if full {
			return errors.New("no space left on device")
		}
		return nil
	}}
	b.Engine = New(b.Options)
	p.do = func(args []string) error { full = args[0] == "reload"; return nil }
	if r := b.apply(b.bundle(c)); r.Err == nil || f.reported != nil {
		t.Errorf("got %v, reported %+v", r.Err, f.reported)
	}
	b.is("web", "2")
	full = false
	p.do = nil
	b.good(b.bundle(c))
}

// TestHalt_OldFilesAreReadAtLast: a former change is taken back while the bundle is
// halted, and the program cannot read the old file at first. The host does not wait for
// the end of the halt before it tries again.
func TestHalt_OldFilesAreReadAtLast(t *testing.T) {
	b, p, f, c := failingBed(t, "nothing", false)
	crashAt(t, b, c, "reload")
	b.is("web", "2")
	f.steps, f.halt = nil, true
	fails := 3
	p.do = func(args []string) error {
		f.note("%s", args[0])
		if fails--; fails >= 0 {
			return errors.New("refused")
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		b.Engine = New(b.Options)
		b.Recover([]Config{c})
		x := b.bundle(c)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			job := Job{Bundle: x.Bundle, View: b.view, First: true}
			b.Join(&job)
			began := time.Now()
			b.Run(ctx, job)
			b.Wait()
			if took := time.Since(began); b.pending.has("web") && took > time.Minute {
				t.Errorf("the host waits %v with an old file that the program has not read", took)
			}
			cancel()
		}
	})
	if b.is("web", "1"); b.pending.has("web") {
		t.Errorf("the program has not read the old file: %v", f.steps)
	}
}
