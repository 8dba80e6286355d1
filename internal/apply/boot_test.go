package apply

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// bootBed is a bundle with a rolling reload, two files of which none is there, on a
// machine that has just started. No host may start.
func bootBed(t *testing.T) (*applyBed, *programs, *fakeFleet, Config) {
	t.Helper()
	b, p, f, c := rollingBed(t)
	c.Templates = append(c.Templates, b.file("two", `two {{ key "web/v" }}`).Templates...)
	f.wait = func(context.Context) error { return errors.New("others are at work") }
	b.Booted = true
	b.keys(map[string]string{"v": "1"})
	return b, p, f, c
}

// TestPermit_FirstFilesOfABoot: a machine that has just started and has no file of the
// bundle writes all of them without a permit, also from the last known good view. The
// next version waits.
func TestPermit_FirstFilesOfABoot(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]Mode{"view": ModeView, "cached": ModeCached} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, f, c := bootBed(t)
			x := b.bundle(c)
			job := Job{Bundle: x.Bundle, View: b.view, First: true, Mode: mode}
			b.Join(&job)
			if r := b.Run(t.Context(), job); r.Err != nil {
				t.Fatal(r.Err)
			}
			b.is("web", "1")
			b.is("two", "two 1")
			if got := strings.Join(f.steps, ", "); got != "reload 1" {
				t.Errorf("got %s", got)
			}
			b.keys(map[string]string{"v": "2"})
			b.bad(x, stagePermit, "others are at work")
			b.is("web", "1")
		})
	}
}

// TestPermit_FirstFilesAgain: the first files are tried again without a permit when the
// first reload fails, and takes them away.
func TestPermit_FirstFilesAgain(t *testing.T) {
	t.Parallel()
	b, p, _, c := bootBed(t)
	fails := 2
	p.do = func([]string) error {
		if fails--; fails >= 0 {
			return errors.New("not started yet")
		}
		return nil
	}
	x := b.bundle(c)
	b.bad(x, stageReload, "not started yet")
	b.is("web", "")
	b.good(x)
	b.is("web", "1")
}

// TestPermit_FirstFilesOnly: a permit is needed on a machine that has been running, where
// one file is in place, and where a file has been in place since the agent started.
func TestPermit_FirstFilesOnly(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(b *applyBed, f *fakeFleet, x *testBundle){
		"a machine that runs": func(b *applyBed, _ *fakeFleet, _ *testBundle) { b.Booted = false },
		"one file is there": func(b *applyBed, _ *fakeFleet, _ *testBundle) {
			if err := os.WriteFile(b.path("two"), []byte("two 1"), 0o600); err != nil {
				t.Error(err)
			}
		},
		"files were there": func(b *applyBed, _ *fakeFleet, x *testBundle) {
			b.good(x)
			for _, name := range []string{"web", "two"} {
				if err := os.Remove(b.path(name)); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		for which, mode := range map[string]Mode{"view": ModeView, "cached": ModeCached} {
			t.Run(name+" "+which, func(t *testing.T) {
				t.Parallel()
				b, _, f, c := bootBed(t)
				x := b.bundle(c)
				prepare(b, f, x)
				job := Job{Bundle: x.Bundle, View: b.view, First: true, Force: true, Mode: mode}
				b.Join(&job)
				if r := b.Run(t.Context(), job); r.Stage != stagePermit {
					t.Errorf("got %v at %s", r.Err, r.Stage)
				}
				b.is("web", "")
			})
		}
	}
}
