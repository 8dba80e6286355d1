package fleet

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
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

// A garbage collection keeps what the deleted config named, so that it is restored as it
// was: the version before, and those of the rollout that brought its version.
func TestGC_KeepsWhatTheTrashNames(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		defer s.Close()
		for n := range 4 {
			mustPublish(t, s, "/c", "", map[string]string{"k": fmt.Sprint(n)})
		}
		ready, stat, err := trees.ReadReady(t.Context(), s, "/c")
		must(t, err)
		ready.Previous, ready.Rollout = 2, "r-0000000000"
		must(t, z.Create(rolloutPath("/c", ready.Rollout), encode(Proposal{Version: ready.Version, Previous: 3, Replaces: []string{"r-0000000001"}})))
		must(t, z.Create(rolloutPath("/c", "r-0000000001"), encode(Proposal{Version: 1, Previous: 3})))
		_, err = s.Set(t.Context(), trees.ReadyPath("/c"), ready.Encode(), stat.Version)
		must(t, err)
		for range 2 {
			_, err = GC(t.Context(), s, "/c", 1, nil)
			must(t, err)
			if n, err := trees.VersionNumbers(t.Context(), s, "/c"); err != nil || len(n) != 4 {
				t.Errorf("left are %v, %v", n, err)
			}
			_, _ = Delete(t.Context(), s, "/c", "ann", "")
		}
		_, err = Restore(t.Context(), s, "/c", "ann")
		must(t, err)
		_, err = Rollback(t.Context(), s, PublishConfig{Path: "/c"}, 0)
		must(t, err)
	})
}
