package apply

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// A process that ends in the middle of a reload leaves a note. Three such ends refuse
// the content, one that comes back does not, and a stop in good order forgets it all.
func TestLives(t *testing.T) {
	t.Parallel()
	dir, bad := t.TempDir(), func() string { return "bad" }
	process := func() attempts { return New(Options{StateDir: dir}).attempts }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		if err := process().err("site", "bad"); err != nil {
			t.Errorf("after %d ends: %v", n, err)
		}
		must(process().begin("site", "bad"))
	}
	l := process()
	if err := l.err("site", "bad"); !errors.Is(err, errAttempts) {
		t.Errorf("after three ends: %v", err)
	}
	if err := l.err("site", "good"); err != nil {
		t.Errorf("other content: %v", err)
	}
	must(l.refuse("site"))
	must(l.begin("site", restoredContent))
	must(l.end("site"))
	if l = process(); !l.refused("site", bad) || l.err("site", restoredContent) != nil {
		t.Errorf("after the old files came back: %+v", l.All())
	}
	must(l.begin("site", "good"))
	must(l.end("site"))
	if l = process(); l.refused("site", bad) {
		t.Errorf("after good content: %+v", l.All())
	}
	must(l.begin("site", "bad"))
	must(l.end("site"))
	if l = process(); len(l.All()) != 0 {
		t.Errorf("a reload that came back: %+v", l.All())
	}
	must(l.begin("site", "bad"))
	must(process().forget())
	if l = process(); len(l.All()) != 0 {
		t.Errorf("after a stop in good order: %+v", l.All())
	}
}

// TestLives_KilledAfterTheReload: what the new file causes kills the agent after the
// reload has returned, while the change is not finished. The fourth process puts the old
// file back, halts the others, and does not try again.
func TestLives_KilledAfterTheReload(t *testing.T) {
	t.Parallel()
	b, _, f, c := rollingBed(t)
	b.keys(map[string]string{"v": "1"})
	b.good(b.bundle(c))
	b.keys(map[string]string{"v": "2"})
	for range maxAttempts {
		crashAt(t, b, c, "post_check")
		b.is("web", "2")
		// A process that comes to no reload does not count, and forgets nothing.
		f.wait = func(context.Context) error { return errors.New("no connection") }
		b.Engine = New(b.Options)
		b.Recover([]Config{c})
		b.bad(b.bundle(c), stagePermit, "no connection")
		f.wait = nil
	}
	f.steps = nil
	b.Engine = New(b.Options)
	b.Recover([]Config{c})
	x := b.bundle(c)
	b.bad(x, stageReload, "ended 3 times")
	if got, want := strings.Join(f.steps, ", "), "permit 2, reload 1, halt 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.bad(x, stageReload, "ended 3 times")
	b.is("web", "1")
	if err := b.Try(t.Context(), x.Bundle, b.view); !errors.Is(err, errAttempts) {
		t.Errorf("a vote on what no apply takes: %v", err)
	}
	b.keys(map[string]string{"v": "3"})
	b.good(x)
	b.is("web", "3")
}
