package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Two publishers edit the same tree at once: no change of either is lost.
func TestEdit_AtOnce(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	path := newRoot(t)
	each := testhelp.Rounds(4, 10)
	var wg sync.WaitGroup
	for i := range 2 {
		s := dial(t)
		ctx := soon(t)
		wg.Go(func() {
			for range each {
				_, err := Edit(ctx, s, PublishConfig{Path: path, Author: "tester"}, func(keys map[string][]byte) error {
					for _, name := range []string{"sum", fmt.Sprint("own", i)} {
						n, _ := strconv.Atoi(string(keys[name]))
						keys[name] = []byte(strconv.Itoa(n + 1))
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	tree, err := config.Read(soon(t), dial(t), path)
	must(t, err)
	if want := map[string]string{"sum": strconv.Itoa(2 * each), "own0": strconv.Itoa(each), "own1": strconv.Itoa(each)}; !has(want)(tree) {
		t.Errorf("got %s", show(tree))
	}
}

// What edit refuses, and what is the same, changes nothing.
func TestEdit_ThatIsNone(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	cfg := PublishConfig{Path: path}
	first, err := Edit(soon(t), s, cfg, func(keys map[string][]byte) error { keys["a"] = []byte("1"); return nil })
	must(t, err)
	refused := errors.New("not today")
	if _, err = Edit(soon(t), s, cfg, func(keys map[string][]byte) error {
		keys["a"][0] = '2'
		return refused
	}); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	res, err := Edit(soon(t), s, cfg, func(map[string][]byte) error { return nil })
	if err != nil || !res.Unchanged || res.Version != first.Version {
		t.Errorf("got %+v, %v", res, err)
	}
	must(t, Freeze(soon(t), s, path, "ann", "why"))
	if _, err = Edit(soon(t), s, cfg, func(keys map[string][]byte) error { keys["a"] = nil; return nil }); !errors.Is(err, ErrFrozen) {
		t.Errorf("got %v", err)
	}
	tree, err := config.Read(soon(t), s, path)
	if err != nil || tree.Generation != first.Version || !has(map[string]string{"a": "1"})(tree) {
		t.Errorf("got %s, %v", show(tree), err)
	}
	must(t, s.Close())
	if _, err = Publish(soon(t), s, cfg); !errors.Is(err, session.ErrClosed) {
		t.Errorf("in a closed session: got %v", err)
	}
	if err = config.Follow(soon(t), config.In(s), config.Config{Name: "c", Path: path}, func(*view.Tree) {}); !errors.Is(err, session.ErrClosed) {
		t.Errorf("follow in a closed session: got %v", err)
	}
}

// Follow goes on in the next session, and passes on only what has changed.
func TestFollow_OverSessions(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		m, err := session.New(session.Config{Servers: []string{"zk:2181"}, Timeout: 10 * time.Second, Dial: z.Dial})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Errorf("manager: %v", err)
			}
		})
		keys := map[string]string{"a": "1"}
		publish := func() {
			t.Helper()
			s, err := m.Session(ctx)
			must(t, err)
			_, err = Publish(ctx, s, PublishConfig{Path: "/c", Keys: bytesOf(keys)})
			must(t, err)
			after(time.Minute)
		}
		publish()
		var mu sync.Mutex // guards got
		var got []map[string]string
		wg.Go(func() {
			err := config.Follow(ctx, m, config.Config{Name: "c", Path: "/c"}, func(tree *view.Tree) {
				now := map[string]string{}
				tree.Walk("", func(key string, k view.Key) bool { now[key] = string(k.Value); return true })
				mu.Lock()
				defer mu.Unlock()
				got = append(got, now)
			})
			if err != nil {
				t.Errorf("follow: %v", err)
			}
		})
		after(time.Minute)
		s, err := m.Session(ctx)
		must(t, err)
		z.ExpireSession(s.ID())
		after(time.Minute)
		keys["b"] = "2"
		publish()
		cancel()
		wg.Wait()
		want := []map[string]string{{"a": "1"}, {"a": "1", "b": "2"}}
		if len(got) != 2 || !maps.Equal(got[0], want[0]) || !maps.Equal(got[1], want[1]) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// Follow returns an error for an invalid path instead of retrying forever.
func TestFollow_BadPath(t *testing.T) {
	t.Parallel()
	if err := config.Follow(soon(t), config.In(dial(t)), config.Config{Name: "c", Path: "c"}, func(*view.Tree) {}); !errors.Is(err, session.ErrBadPath) {
		t.Errorf("got %v", err)
	}
}
