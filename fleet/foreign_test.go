package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// Other tools know nothing of the publishers' lock: they set, delete and create flat
// keys at any moment. No change of theirs is lost to an edit.
func TestEdit_BesideAnotherTool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		foreign func(z *memzk.Server) error
		want    map[string]string
	}{
		"sets the same key":  {func(z *memzk.Server) error { return z.Set("/c/a", []byte("7")) }, map[string]string{"a": "8", "b": "2"}},
		"sets another key":   {func(z *memzk.Server) error { return z.Set("/c/b", []byte("7")) }, map[string]string{"a": "2", "b": "7"}},
		"deletes a key":      {func(z *memzk.Server) error { return z.Delete("/c/b") }, map[string]string{"a": "2"}},
		"creates a key":      {func(z *memzk.Server) error { return z.Create("/c/d", []byte("4")) }, map[string]string{"a": "2", "b": "2", "d": "4"}},
		"changes and leaves": {func(*memzk.Server) error { return nil }, map[string]string{"a": "2", "b": "2"}},
	} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			s := join(t, z)
			mustPublish(t, s, "/c", config.LayoutFlat, map[string]string{"a": "1", "b": "2"})
			calls := 0
			_, err := Edit(t.Context(), s, PublishConfig{Path: "/c", Force: true}, func(keys map[string][]byte) error {
				if calls++; calls == 1 {
					must(t, c.foreign(z))
				}
				keys["a"] = []byte{keys["a"][0] + 1}
				return nil
			})
			tree, readErr := config.Read(t.Context(), s, "/c")
			if err != nil || readErr != nil || !has(c.want)(tree) {
				t.Errorf("%s: %v, %v, got %s after %d calls", name, err, readErr, show(tree), calls)
			}
			must(t, s.Close())
		})
	}
}

// The same between the reading under the lock and the multi that changes: an edit
// begins anew, a publish that expects the tree is refused, and one that does not goes
// on from what is there.
func TestPublish_BesideAnotherTool(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, checked := range []bool{true, false} {
		for _, step := range []string{"all", "begin", "keys", "ready"} {
			if testhelp.NotToday(fmt.Sprint(step, checked), 3) {
				continue
			}
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s := join(t, z)
				n := 2
				if step != "all" {
					n = 1500 // more than one multi
				}
				mustPublish(t, s, "/c", config.LayoutFlat, numbered(n, "1"))
				cfg := PublishConfig{Path: "/c", Layout: config.LayoutFlat, Keys: bytesOf(numbered(n, "2")), Force: true}
				if checked {
					generation := z.Tree()["/c/ready"].Stat.Czxid
					cfg.Check = &generation
				}
				done := false
				cfg.step = func(name string) error {
					if name == step && !done {
						done = true
						return errors.Join(z.Set("/c/dir0/key0000", []byte("foreign")), z.Set("/c/dir1/key0001", []byte("foreign")))
					}
					return nil
				}
				_, err := Publish(t.Context(), s, cfg)
				value := string(z.Tree()["/c/dir1/key0001"].Data)
				switch refused := checked && step == "all"; {
				case !done:
					t.Errorf("no step %q", step)
				case refused && (!errors.Is(err, ErrConflict) || value != "foreign"):
					t.Errorf("checked %v, %s: %v, value %q", checked, step, err, value)
				case !refused && (err != nil || value != "2"):
					t.Errorf("checked %v, %s: %v, value %q", checked, step, err, value)
				}
				must(t, s.Close())
			})
		}
	}
}

// Another tool without the lock publishes as a whole, so that ready is at version 0
// before and after it: the tree is the one that is wanted all the same, also where
// the other changed a key that ours leaves alone.
func TestPublish_BesideAnotherPublisher(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, step := range []string{"all", "begin"} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			s := join(t, z)
			n := 2
			if step == "begin" {
				n = 1500
			}
			mustPublish(t, s, "/c", config.LayoutFlat, numbered(n, "1"))
			want := numbered(n, "2")
			want["same"] = "kept"
			must(t, z.Create("/c/same", []byte("kept")))
			cfg := PublishConfig{Path: "/c", Layout: config.LayoutFlat, Keys: bytesOf(want), Force: true}
			done := false
			cfg.step = func(name string) error {
				if name == step && !done {
					done = true
					return errors.Join(z.Delete("/c/ready"), z.Set("/c/same", []byte("foreign")), z.Create("/c/ready", nil))
				}
				return nil
			}
			_, err := Publish(t.Context(), s, cfg)
			tree, readErr := config.Read(t.Context(), s, "/c")
			if !done || err != nil || readErr != nil || !has(want)(tree) {
				t.Errorf("%s: done %v, %v, %v, got %d keys", step, done, err, readErr, tree.Len())
			}
			must(t, s.Close())
		})
	}
}

// A key that another tool set is not deleted unseen.
func TestPublish_DeletesWhatWasRead(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		mustPublish(t, s, "/c", config.LayoutFlat, map[string]string{"a": "1", "b": "2"})
		generation := z.Tree()["/c/ready"].Stat.Czxid
		cfg := PublishConfig{Path: "/c", Layout: config.LayoutFlat, Keys: bytesOf(map[string]string{"a": "1"}), Check: &generation, Force: true}
		cfg.step = func(string) error { return z.Set("/c/b", []byte("foreign")) }
		if _, err := Publish(t.Context(), s, cfg); !errors.Is(err, ErrConflict) {
			t.Errorf("got %v", err)
		}
		if got := string(z.Tree()["/c/b"].Data); got != "foreign" {
			t.Errorf("the key holds %q", got)
		}
		must(t, s.Close())
	})
}

// A conversion does not lose what another tool does meanwhile. Before the flip the
// conversion is refused. After the flip the key stays, and the error names it.
func TestConvert_BesideAnotherTool(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]func(z *memzk.Server) error{
		"sets":    func(z *memzk.Server) error { return z.Set("/c/dir1/key0001", []byte("foreign")) },
		"deletes": func(z *memzk.Server) error { return z.Delete("/c/dir1/key0001") },
		"creates": func(z *memzk.Server) error { return z.Create("/c/dir1/new", []byte("foreign")) },
	} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			s := join(t, z)
			mustPublish(t, s, "/c", config.LayoutFlat, numbered(20, "1"))
			before := len(z.Tree())
			cfg := PublishConfig{Path: "/c", Force: true}
			cfg.step = func(step string) error {
				if step == "flip" {
					return foreign(z)
				}
				return nil
			}
			_, err := Convert(t.Context(), s, cfg, false)
			if _, _, readErr := trees.ReadReady(t.Context(), s, "/c"); !errors.Is(err, ErrConflict) || readErr == nil {
				t.Errorf("%s: %v, ready: %v", name, err, readErr)
			}
			if tree, err := config.Read(t.Context(), s, "/c"); err != nil || tree.Len() < 19 || len(z.Tree()) < before-1 {
				t.Errorf("%s: the flat tree is %s, %v", name, show(tree), err)
			}
			must(t, s.Close())
		})
	}
}

// Another tool changes a key between the last look and the flip, where no check can see
// it, or after the flip. The error names the key, and the key stays.
func TestConvert_TellsWhatItMissed(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	flip := func(h memzk.Held, _ bool) bool {
		return h.Op == jute.OpMulti && bytes.Contains(h.Body, []byte("/c/ready"))
	}
	look := func(_ memzk.Held, flipped bool) bool { return flipped }
	deletion := func(h memzk.Held, flipped bool) bool {
		return flipped && h.Op == jute.OpMulti && bytes.Contains(h.Body, []byte("/c/dir1"))
	}
	set := func(z *memzk.Server) error { return z.Set("/c/key", []byte("foreign")) }
	create := func(path string) func(z *memzk.Server) error {
		return func(z *memzk.Server) error { return z.Create(path, []byte("foreign")) }
	}
	again := func(z *memzk.Server) error { return errors.Join(z.Delete("/c/key"), create("/c/key")(z)) }
	for name, c := range map[string]struct {
		before   func(h memzk.Held, flipped bool) bool // the request that the other tool comes before
		foreign  func(z *memzk.Server) error
		reported string // the error names it
		stays    string
	}{
		"a new key":             {flip, create("/c/new"), `1 of its flat keys, such as "new"`, "/c/new"},
		"a new key deeper":      {flip, create("/c/dir1/new"), `"dir1/new"`, "/c/dir1/new"},
		"a new key below a key": {flip, create("/c/key/new"), `"key/new"`, "/c/key/new"},
		"a key set":             {look, set, `"key"`, "/c/key"},
		"a key deleted":         {look, func(z *memzk.Server) error { return z.Delete("/c/key") }, `"key"`, ""},
		"a key set in the end":  {deletion, set, `"key"`, "/c/key"},
		"a key made again":      {look, again, `"key"`, "/c/key"},
		"a key made again soon": {flip, again, `"key"`, "/c/key"},
		"nothing":               {flip, func(*memzk.Server) error { return nil }, "", ""},
	} {
		for _, keep := range []bool{true, false} {
			if name == "a key set in the end" && keep {
				continue // nothing is deleted
			}
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s := join(t, z)
				keys := numbered(20, "1")
				keys["key"] = "1"
				mustPublish(t, s, "/c", config.LayoutFlat, keys)
				done, flat := false, z.Tree()["/c/ready"].Stat.Version
				z.Hold(func(h memzk.Held) <-chan struct{} {
					if !done && c.before(h, z.Tree()["/c/ready"].Stat.Version > flat) {
						done = true
						if err := c.foreign(z); err != nil {
							t.Error(err)
						}
					}
					return nil
				})
				_, err := Convert(t.Context(), s, PublishConfig{Path: "/c"}, keep)
				z.Hold(nil)
				switch {
				case !done:
					t.Errorf("%s, keep %v: the moment has not come", name, keep)
				case c.reported == "":
					must(t, err)
				case !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), c.reported):
					t.Errorf("%s, keep %v: got %v", name, keep, err)
				}
				if got := z.Tree()[c.stays].Data; c.stays != "" && string(got) != "foreign" {
					t.Errorf("%s, keep %v: %s holds %q", name, keep, c.stays, got)
				}
				if tree, err := config.Read(t.Context(), s, "/c"); err != nil || tree.Layout != config.LayoutVersioned || !has(keys)(tree) {
					t.Errorf("%s, keep %v: %s, %v", name, keep, show(tree), err)
				}
				must(t, s.Close())
			})
		}
	}
}

func TestConvert_KeyChangedAfterTheFlipStays(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		mustPublish(t, s, "/c", config.LayoutFlat, numbered(20, "1"))
		p := &publisher{s: s, cfg: &PublishConfig{Path: "/c"}}
		st, err := trees.ReadState(t.Context(), s, "/c")
		must(t, err)
		must(t, z.Create("/guard", nil))
		p.guard = session.CheckOp("/guard", 0)
		must(t, z.Set("/c/dir1/key0001", []byte("foreign")))
		kept, err := p.deleteRows(t.Context(), st)
		if err != nil || !slices.Equal(kept, []string{"dir1/key0001", "dir1"}) {
			t.Errorf("kept %q, %v", kept, err)
		}
		for path := range z.Tree() {
			if path == "/c/dir1/key0001" || path == "/c/dir1" || path == "/c" || path == "/c/ready" {
				continue
			}
			if len(path) > 3 && path[:3] == "/c/" && path[:6] == "/c/dir" {
				t.Errorf("%s is left", path)
			}
		}
		if got := string(z.Tree()["/c/dir1/key0001"].Data); got != "foreign" {
			t.Errorf("the changed key holds %q", got)
		}
		must(t, s.Close())
	})
}

// A lookup that another publication overtakes returns no value of one generation as that
// of another.
func TestLookup_OvertakenByAPublication(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		mustPublish(t, s, "/c", config.LayoutFlat, map[string]string{"a": "1"})
		z.Delay(jute.OpGetData, time.Second)
		go func() {
			time.Sleep(500 * time.Millisecond)
			must(t, errors.Join(z.Delete("/c/ready"), z.Set("/c/a", []byte("2")), z.Create("/c/ready", nil)))
		}()
		value, generation, err := config.Lookup(t.Context(), s, "/c", "a")
		if want := z.Tree()["/c/ready"].Stat.Czxid; err != nil || string(value) != "2" || generation != want {
			t.Errorf("%q at %d, want generation %d: %v", value, generation, want, err)
		}
		must(t, s.Close())
	})
}

// A tree that is replaced while it is read is read again: no half of one
// generation stands beside half of another.
func TestGet_OvertakenByAPublication(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		mustPublish(t, s, "/c", config.LayoutFlat, map[string]string{"a": "1", "b": "1"})
		z.Delay(jute.OpGetData, time.Second)
		z.Delay(jute.OpMultiRead, time.Second)
		go func() {
			time.Sleep(1500 * time.Millisecond) // ready and the list were read
			must(t, errors.Join(z.Delete("/c/ready"), z.Set("/c/a", []byte("2")), z.Set("/c/b", []byte("2")), z.Create("/c/ready", nil)))
		}()
		st, err := trees.ReadState(t.Context(), s, "/c")
		if err != nil {
			t.Fatal(err)
		}
		if want := z.Tree()["/c/ready"].Stat.Czxid; st.Stat.Czxid != want {
			t.Errorf("the keys are those of generation %d, want %d", st.Stat.Czxid, want)
		}
		must(t, s.Close())
	})
}
