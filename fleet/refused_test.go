package fleet

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// znodes lists what stands below a path, with the versions of data and children.
func znodes(t *testing.T, s *session.Session, path string) []string {
	t.Helper()
	_, st, err := s.Get(soon(t), path)
	must(t, err)
	list := []string{fmt.Sprint(path, " ", st.Version, " ", st.Cversion)}
	names, _, err := s.Children(soon(t), path)
	must(t, err)
	slices.Sort(names)
	for _, name := range names {
		list = append(list, znodes(t, s, path+"/"+name)...)
	}
	return list
}

// A publisher that is killed before the flip leaves contents that no follower uses.
// Garbage collection takes them once they are older than the kept versions.
func TestPublish_KilledIsCollected(t *testing.T) {
	t.Parallel()
	died := errors.New("died")
	for _, step := range []string{"objects", "version", "flip"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s, path := dial(t), newRoot(t)
			mustPublish(t, s, path, "", map[string]string{"a": "1"})
			victim := dial(t)
			cfg := PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "never", "b": "seen"})}
			cfg.step = func(at string) error {
				if at != step {
					return nil
				}
				_ = victim.Close()
				return died
			}
			if _, err := Publish(soon(t), victim, cfg); !errors.Is(err, died) {
				t.Fatalf("got %v", err)
			}
			tree, err := config.Read(soon(t), s, path)
			if err != nil || tree.Generation != 1 || !has(map[string]string{"a": "1"})(tree) {
				t.Errorf("in use is %s, %v", show(tree), err)
			}
			last := mustPublish(t, s, path, "", map[string]string{"a": "2"})
			if _, err = GC(soon(t), s, path, 1, nil); err != nil {
				t.Fatal(err)
			}
			history, err := config.History(soon(t), s, path)
			if err != nil || len(history) != 2 || history[0].Number != last.Version || history[1].Number != 1 {
				t.Errorf("kept are %+v, %v", history, err)
			}
			for _, value := range []string{"never", "seen"} {
				if _, ok, err := s.Exists(soon(t), trees.ObjectPath(path, trees.DigestOf([]byte(value)))); ok || err != nil {
					t.Errorf("%q is left, %v", value, err)
				}
			}
		})
	}
}

// Who may not write, or publishes into a frozen config, changes nothing at all.
func TestPublish_RefusedWritesNothing(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	owner := dial(t, func(c *session.Config) {
		c.Auth = []session.Auth{{Scheme: "digest", Data: []byte("ops:secret")}}
	})
	path := newRoot(t)
	mustPublish(t, owner, path, "", map[string]string{"a": "1"})
	stranger := dial(t)
	cfg := PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "2", "b": "2"})}
	acts := map[string]func(s *session.Session) error{
		"publish": func(s *session.Session) error { _, err := Publish(soon(t), s, cfg); return err },
		"prepare": func(s *session.Session) error { _, err := Prepare(soon(t), s, cfg); return err },
		"rollback": func(s *session.Session) error {
			_, err := Rollback(soon(t), s, PublishConfig{Path: path}, 1)
			return err
		},
		"prepare rollback": func(s *session.Session) error {
			_, err := rollback(soon(t), s, PublishConfig{Path: path}, 1, false)
			return err
		},
	}
	before := znodes(t, owner, path)
	for name, act := range acts {
		if err := act(stranger); !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("%s by a stranger: got %v", name, err)
		}
	}
	if err := Freeze(soon(t), stranger, path, "ann", "why not"); !errors.Is(err, session.ErrNoAuth) {
		t.Errorf("freeze by a stranger: got %v", err)
	}
	if _, err := GC(soon(t), stranger, path, 1, nil); !errors.Is(err, session.ErrNoAuth) {
		t.Errorf("gc by a stranger: got %v", err)
	}
	if after := znodes(t, owner, path); !slices.Equal(after, before) {
		t.Errorf("got\n%q\nwant\n%q", after, before)
	}
	must(t, Freeze(soon(t), owner, path, "ann", "sales day"))
	before = znodes(t, owner, path)
	for name, act := range acts {
		if err := act(owner); !errors.Is(err, ErrFrozen) {
			t.Errorf("%s while frozen: got %v", name, err)
		}
	}
	if after := znodes(t, owner, path); !slices.Equal(after, before) {
		t.Errorf("got\n%q\nwant\n%q", after, before)
	}
}

// A rollout of a flat tree is refused: there is no version to vote on.
func TestPrepare_FlatTree(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, config.LayoutFlat, map[string]string{"a": "1"})
	before := znodes(t, s, path)
	if _, err := Prepare(soon(t), s, PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "2"})}); !errors.Is(err, config.ErrNoVersion) {
		t.Errorf("got %v", err)
	}
	if after := znodes(t, s, path); !slices.Equal(after, before) {
		t.Errorf("got\n%q\nwant\n%q", after, before)
	}
}
