package apply

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/zkagent/zkagent/internal/files"
)

// A process that ends in the middle of a reload leaves a note. Three such ends refuse
// the content, one that comes back does not, and a stop in good order forgets it all.
func TestLives(t *testing.T) {
	t.Parallel()
	dir, bad := t.TempDir(), func() string { return "bad" }
	process := func() *lives { return newLives(dir, func() *files.FS { return nil }, slog.New(slog.DiscardHandler)) }
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
	if err := l.err("site", "bad"); !errors.Is(err, errLives) {
		t.Errorf("after three ends: %v", err)
	}
	if err := l.err("site", "good"); err != nil {
		t.Errorf("other content: %v", err)
	}
	must(l.refuse("site"))
	must(l.begin("site", restoredContent))
	must(l.end("site"))
	if l = process(); !l.refused("site", bad) || l.err("site", restoredContent) != nil {
		t.Errorf("after the old files came back: %+v", l.list)
	}
	must(l.begin("site", "good"))
	must(l.end("site"))
	if l = process(); l.refused("site", bad) {
		t.Errorf("after good content: %+v", l.list)
	}
	must(l.begin("site", "bad"))
	must(l.end("site"))
	if l = process(); len(l.list) != 0 {
		t.Errorf("a reload that came back: %+v", l.list)
	}
	must(l.begin("site", "bad"))
	must(process().forget())
	if l = process(); len(l.list) != 0 {
		t.Errorf("after a stop in good order: %+v", l.list)
	}
}
