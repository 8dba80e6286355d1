package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
)

// A deleted config is restored as it was; while it is deleted, its versions stay, and
// numbers continue.
func TestDelete_Restore(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutVersioned, config.LayoutFlat} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			if _, err := Delete(soon(t), s, path, "ann", ""); !errors.Is(err, config.ErrNotReady) {
				t.Errorf("nothing there: got %v", err)
			}
			for _, value := range []string{"1", "2"} {
				mustPublish(t, s, path, layout, map[string]string{"a": value})
			}
			before, err := config.Read(soon(t), s, path)
			must(t, err)
			must(t, Freeze(soon(t), s, path, "ann", "sales"))
			if _, err := Delete(soon(t), s, path, "ann", ""); !errors.Is(err, ErrFrozen) {
				t.Errorf("frozen: got %v", err)
			}
			_, err = Unfreeze(soon(t), s, path, "ann")
			must(t, err)
			d, err := Delete(soon(t), s, path, "ann", "moved")
			must(t, err)
			if kept, err := InTrash(soon(t), s, path); err != nil || kept.Reason != "moved" || kept.Version != d.Version {
				t.Errorf("got %+v, %v", kept, err)
			}
			if layout == config.LayoutVersioned {
				_, err = GC(soon(t), s, path, 1, nil)
				must(t, err)
			}
			_, err = Restore(soon(t), s, path, "ann")
			must(t, err)
			after, err := config.Read(soon(t), s, path)
			must(t, err)
			if !after.SameKeys(before) || after.Digest != before.Digest {
				t.Errorf("got %s, want %s", show(after), show(before))
			}
			if _, err = Restore(soon(t), s, path, "ann"); !errors.Is(err, ErrNotDeleted) {
				t.Errorf("again: got %v", err)
			}
		})
	}
}

// The record of a deleted config goes after TrashKept, with its version; until then both
// stay.
func TestGC_PurgesTheTrash(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, "", map[string]string{"a": "1"})
	d, err := Delete(soon(t), s, path, "ann", "")
	must(t, err)
	for n := d.Version + 1; n <= d.Version+2; n++ { // of rollouts that ended
		write(t, s, trees.VersionPath(path, n), "unreadable")
	}
	for _, c := range []struct {
		age  time.Duration
		kept bool
	}{{TrashKept - time.Hour, true}, {TrashKept + time.Hour, false}} {
		r, _, err := readTrash(soon(t), s, path)
		must(t, err)
		r.At = time.Now().Add(-c.age)
		_, err = s.Set(soon(t), trashPath(path), encode(r), -1)
		must(t, err)
		_, err = GC(soon(t), s, path, 1, nil)
		must(t, err)
		if _, err := InTrash(soon(t), s, path); errors.Is(err, ErrNotDeleted) == c.kept {
			t.Errorf("after %v: %v, kept is %v", c.age, err, c.kept)
		}
		if _, ok, _ := s.Exists(soon(t), trees.VersionPath(path, d.Version)); ok != c.kept {
			t.Errorf("after %v: the version is there: %v", c.age, ok)
		}
	}
}
