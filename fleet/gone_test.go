package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
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

// What the version in use consists of is deleted, and ready and the version stay.
func TestWatcher_DeletedObjects(t *testing.T) {
	testhelp.InTurn(t, 2)
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		must(t, s.CreateParents(t.Context(), "/c/ready"))
		host := join(t, z)
		f := follow(t, host, config.Config{Name: "c", Path: "/c"})
		var cfg PublishConfig
		for _, keys := range []map[string]string{{}, numbered(200, ""), numbered(200, "1"), {"a": "1", "b": ""}} {
			cfg = PublishConfig{Path: "/c", Keys: bytesOf(keys), Force: true}
			_, err := Publish(t.Context(), s, cfg)
			must(t, err)
			for range 60 {
				after(time.Minute)
				if st := f.w.Status(); st.Err != nil || st.Generation == 0 {
					t.Fatalf("%d keys: got %+v", len(keys), st)
				}
			}
		}
		below, err := deepest(t.Context(), s, "/c/objects")
		must(t, err)
		must(t, deleteAll(t.Context(), s, nil, below))
		for range 5 {
			after(time.Minute)
			if st := f.w.Status(); !errors.Is(st.Err, config.ErrGone) {
				t.Errorf("deleted: got %v", st.Err)
			}
		}
		_, err = Publish(t.Context(), s, cfg)
		must(t, err)
		for range 5 {
			after(time.Minute)
			if st := f.w.Status(); st.Err != nil {
				t.Errorf("published again: got %v", st.Err)
			}
		}
		must(t, f.stop())
		must(t, host.Close())
		must(t, s.Close())
	})
}

// A ready that is cut off or emptied is damage in the default layout, too: it is no flat
// tree, whether keys of one were kept or not. The last tree stays, and a publish with Force
// and a rollback bring the config back.
func TestWatcher_DamagedReady(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"kept", "", "{", `{"zkagent":1,"version":2,"dig`, `{"zkagent":1,"version":0}`} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			first, keys := map[string]string{"a": "1"}, map[string]string{"a": "2"}
			if data == "kept" {
				data = ""
				mustPublish(t, s, path, config.LayoutFlat, first)
				_, err := Convert(soon(t), s, PublishConfig{Path: path}, true)
				must(t, err)
			} else {
				mustPublish(t, s, path, "", first)
			}
			mustPublish(t, s, path, "", keys)
			f := follow(t, dial(t), config.Config{Name: "c", Path: path})
			f.await("the tree", has(keys))
			_, _, err := s.Create(soon(t), SubscriptionPath(path, "h"), encode(Subscription{Version: 2, State: StateOK}), session.Ephemeral)
			must(t, err)
			damage := func() {
				_, err := s.Set(soon(t), trees.ReadyPath(path), []byte(data), -1)
				must(t, err)
				f.awaitStatus("the problem", func(st config.Status) bool { return errors.Is(st.Err, trees.ErrReady) })
			}
			damage()
			if n := len(f.all()); n != 1 {
				t.Errorf("passed on %d trees", n)
			}
			if list, err := config.History(soon(t), s, path); err != nil || len(list) != 2 {
				t.Errorf("the history is %v, %v", list, err)
			}
			cfg := PublishConfig{Path: path, Keys: bytesOf(keys)}
			if _, err := Publish(soon(t), s, cfg); !errors.Is(err, config.ErrDamaged) {
				t.Errorf("without Force: got %v", err)
			}
			if _, err := config.Read(soon(t), s, path); !errors.Is(err, config.ErrDamaged) {
				t.Errorf("read: got %v", err)
			}
			cfg.Force, cfg.Check = true, new(int64)
			r, err := Publish(soon(t), s, cfg)
			must(t, err)
			if r.Version <= 2 || r.Previous != 2 || r.Layout != config.LayoutVersioned {
				t.Errorf("published %+v", r)
			}
			if list, err := config.History(soon(t), s, path); err != nil || len(list) != 3 || !list[1].Used {
				t.Errorf("the history is %v, %v", list, err)
			}
			f.awaitStatus("no problem", func(st config.Status) bool { return st.Err == nil && st.Generation == r.Version })
			damage()
			_, err = Rollback(soon(t), s, PublishConfig{Path: path}, 1)
			must(t, err)
			f.await("the first tree", has(first))
		})
	}
}

// The versions of a deleted tree stay below the flat tree that replaces it. That is no
// damage: commands and agents use the flat tree.
func TestPublish_FlatAfterDelete(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	for _, value := range []string{"1", "2"} {
		mustPublish(t, s, path, "", map[string]string{"a": value})
	}
	f := follow(t, dial(t), config.Config{Name: "c", Path: path})
	f.await("the versioned tree", has(map[string]string{"a": "2"}))
	_, err := Delete(soon(t), s, path, "ann", "")
	must(t, err)
	for _, value := range []string{"3", "4"} {
		keys := map[string]string{"a": value}
		mustPublish(t, s, path, config.LayoutFlat, keys)
		f.await("the flat tree", has(keys))
		got, err := config.Read(soon(t), s, path)
		if err != nil || got.Layout != config.LayoutFlat {
			t.Errorf("read: %+v, %v", got, err)
		}
	}
}
