package fleet

import (
	"errors"
	"testing"

	"github.com/zkagent/zkagent/config"
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
