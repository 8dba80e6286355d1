package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A tree that was in use and is deleted is a problem within seconds, in every layout and
// also for a process that had it before; its last tree stays. What comes back ends the
// problem.
func TestWatcher_DeletedTree(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutVersioned, config.LayoutFlat, config.LayoutPlain} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			keys := map[string]string{"a": "1"}
			publish := func() {
				if layout == config.LayoutPlain {
					write(t, s, path+"/a", "1")
				} else {
					mustPublish(t, s, path, layout, keys)
				}
			}
			publish()
			f := follow(t, dial(t), config.Config{Name: "c", Path: path, Layout: layout})
			f.await("the tree", has(keys))
			remove(t, s, path)
			gone := func(st config.Status) bool { return errors.Is(st.Err, config.ErrGone) }
			f.awaitStatus("the problem", gone)
			again := follow(t, dial(t), config.Config{Name: "c", Path: path, Layout: layout, Had: true})
			again.awaitStatus("the problem after a restart", gone)
			fresh := follow(t, dial(t), config.Config{Name: "c", Path: path, Layout: layout})
			if st := fresh.w.Status(); st.Err != nil {
				t.Errorf("never published: got %v", st.Err)
			}
			if len(f.all()) != 1 {
				t.Errorf("passed on %d trees", len(f.all()))
			}
			publish()
			f.awaitStatus("no problem", func(st config.Status) bool { return st.Err == nil })
		})
	}
}

// remove deletes a tree as "zk rm -r" does.
func remove(t *testing.T, s *session.Session, path string) {
	t.Helper()
	below, err := deepest(soon(t), s, path)
	must(t, err)
	must(t, deleteAll(soon(t), s, nil, append(below, path)))
}

// The version in use is deleted, and ready stays.
func TestWatcher_DeletedVersion(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, "", map[string]string{"a": "1"})
	must(t, s.Delete(soon(t), trees.VersionPath(path, 1), -1))
	f := follow(t, dial(t), config.Config{Name: "c", Path: path, Had: true})
	f.awaitStatus("the problem", func(st config.Status) bool { return errors.Is(st.Err, config.ErrGone) })
}

// A version that is deleted while hosts hold it is a problem at once, and none any more
// when it is back.
func TestWatcher_DeletedVersionInMemory(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		must(t, s.CreateParents(t.Context(), "/c/ready"))
		_, err := Publish(t.Context(), s, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"a": "1"})})
		must(t, err)
		host := join(t, z)
		f := follow(t, host, config.Config{Name: "c", Path: "/c"})
		after(2 * time.Minute)
		data, _, err := s.Get(t.Context(), trees.VersionPath("/c", 1))
		must(t, err)
		must(t, s.Delete(t.Context(), trees.VersionPath("/c", 1), -1))
		after(time.Second)
		if st := f.w.Status(); !errors.Is(st.Err, config.ErrGone) {
			t.Errorf("deleted: got %v", st.Err)
		}
		_, _, err = s.Create(t.Context(), trees.VersionPath("/c", 1), data, session.Persistent)
		must(t, err)
		after(time.Second)
		if st := f.w.Status(); st.Err != nil {
			t.Errorf("restored: got %v", st.Err)
		}
		must(t, f.stop())
		must(t, host.Close())
		must(t, s.Close())
	})
}
