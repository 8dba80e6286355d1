package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// bubble runs a test in virtual time against a server in memory.
func bubble(t *testing.T, fn func(t *testing.T, z *memzk.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		z := memzk.New(memzk.Options{TickTime: 100 * time.Millisecond, MaxTimeout: time.Minute})
		defer z.Close()
		fn(t, z)
	})
}

// join returns a session on a server in memory. It must be closed in the bubble.
func join(t *testing.T, z *memzk.Server, addrs ...string) *session.Session {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"zk:2181"}
	}
	s, err := session.Dial(t.Context(), session.Config{Servers: addrs, Timeout: 30 * time.Second, Dial: z.Dial})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// after waits in virtual time.
func after(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
	synctest.Wait()
}

// flatTree writes a flat tree without a client.
func flatTree(t *testing.T, z *memzk.Server, value string, ready bool) {
	t.Helper()
	for i := range 4 {
		path := fmt.Sprintf("/c/k%d", i)
		if !z.Exists(path) {
			must(t, z.Create(path, nil))
		}
		must(t, z.Set(path, []byte(value)))
	}
	if ready {
		must(t, z.Create("/c/ready", nil))
	}
}

// whole is a tree as flatTree writes it.
func whole(value string) func(*view.Tree) bool {
	return has(map[string]string{"k0": value, "k1": value, "k2": value, "k3": value})
}

// interrupted follows a tree of value 1 while each read takes a second, one after
// another, calls change in the middle of the first reading (ready, the root and
// one key have been read), and returns what was passed on at the end.
func interrupted(t *testing.T, change func(t *testing.T, z *memzk.Server)) []*view.Tree {
	t.Helper()
	var trees []*view.Tree
	bubble(t, func(t *testing.T, z *memzk.Server) {
		flatTree(t, z, "1", true)
		s := join(t, z)
		z.Delay(jute.OpGetData, time.Second)
		f := follow(t, s, config.Config{Name: "c", Path: "/c", Concurrency: 1})
		after(3500 * time.Millisecond)
		change(t, z)
		after(time.Minute)
		z.Delay(jute.OpGetData, 0)
		must(t, f.stop())
		trees = f.all()
		must(t, s.Close())
	})
	return trees
}

// onlyWhole checks that one tree was passed on, with the value.
func onlyWhole(t *testing.T, trees []*view.Tree, value string) {
	t.Helper()
	if len(trees) != 1 || !whole(value)(trees[0]) {
		t.Errorf("passed on %d trees", len(trees))
		for _, tree := range trees {
			t.Error(show(tree))
		}
	}
}

func TestWatcher_ReadyDeletedWhileReading(t *testing.T) {
	t.Parallel()
	trees := interrupted(t, func(t *testing.T, z *memzk.Server) {
		must(t, z.Delete("/c/ready"))
		must(t, z.Set("/c/k2", []byte("2")))
		after(20 * time.Second)
		flatTree(t, z, "2", true)
	})
	onlyWhole(t, trees, "2")
}

func TestWatcher_ReadyRecreatedWhileReading(t *testing.T) {
	t.Parallel()
	trees := interrupted(t, func(t *testing.T, z *memzk.Server) {
		must(t, z.Delete("/c/ready"))
		flatTree(t, z, "2", true)
	})
	onlyWhole(t, trees, "2")
}

func TestWatcher_ReconnectMidRead(t *testing.T) {
	t.Parallel()
	trees := interrupted(t, func(t *testing.T, z *memzk.Server) {
		z.RefuseDial()
		z.DropConnections()
		must(t, z.Delete("/c/ready"))
		flatTree(t, z, "2", true)
		after(500 * time.Millisecond)
		z.Heal()
	})
	onlyWhole(t, trees, "2")
}

// The connection is lost at each request of a reader, and the tree is replaced before it
// is back. The watch on ready is set again before the reader reads on, so that it never
// passes on a mix.
func TestWatcher_ReplacedWhileAway(t *testing.T) {
	t.Parallel()
	for n, struck := 1, true; struck; n++ {
		for _, before := range []bool{true, false} {
			bubble(t, func(t *testing.T, z *memzk.Server) {
				flatTree(t, z, "1", true)
				s := join(t, z)
				lost := z.LoseReply(memzk.AnyOp, n, before)
				go func() {
					select {
					case <-lost:
						z.RefuseDial()
						must(t, z.Delete("/c/ready"))
						flatTree(t, z, "2", true)
						z.Heal()
					case <-t.Context().Done():
					}
				}()
				f := follow(t, s, config.Config{Name: "c", Path: "/c", Concurrency: 1})
				after(30 * time.Second)
				must(t, f.stop())
				select {
				case <-lost:
					onlyWhole(t, f.all(), "2")
				default:
					struck = false
					onlyWhole(t, f.all(), "1")
				}
				must(t, s.Close())
			})
		}
		if t.Failed() || !struck && n < 5 {
			t.Fatalf("stopped at request %d", n)
		}
	}
}

// A reader on a server that lags sees the old tree, then the new one, and never
// a mix, also when it moves from one server to another.
func TestWatcher_TornReadAcrossServers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		flatTree(t, z, "0", true)
		s := join(t, z, "a:2181", "b:2181")
		f := follow(t, s, config.Config{Name: "c", Path: "/c"})
		after(time.Second)
		for round := 1; round <= 20; round++ {
			z.Lag("a:2181")
			must(t, z.Delete("/c/ready"))
			flatTree(t, z, fmt.Sprint(round), round%3 != 0)
			z.DropConnections()
			after(3 * time.Second)
			z.CatchUp("a:2181")
			if round%3 == 0 {
				must(t, z.Create("/c/ready", nil))
			}
			after(3 * time.Second)
			if !whole(fmt.Sprint(round))(f.last()) {
				t.Errorf("round %d: passed on %s", round, show(f.last()))
			}
		}
		for _, tree := range f.all() {
			checkWhole(t, tree, 4)
		}
		must(t, f.stop())
		must(t, s.Close())
	})
}

func TestPublish_QuotaExceededOnPublish(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s := join(t, z)
				cfg := PublishConfig{Path: "/c", Layout: layout, Keys: bytesOf(map[string]string{"a": "1"})}
				_, err := Publish(t.Context(), s, cfg)
				must(t, err)
				z.RefuseWith(jute.OpMulti, jute.ErrCodeQuotaExceeded)
				cfg.Keys = bytesOf(map[string]string{"a": "2"})
				if _, err := Publish(t.Context(), s, cfg); !errors.Is(err, session.ErrQuota) {
					t.Errorf("got %v", err)
				}
				z.Allow(jute.OpMulti)
				tree, err := config.Read(t.Context(), s, "/c")
				if err != nil || !has(map[string]string{"a": "1"})(tree) {
					t.Errorf("got %s, %v", show(tree), err)
				}
				_, err = Publish(t.Context(), s, cfg)
				must(t, err)
				must(t, s.Close())
			})
		})
	}
}

// A publish whose nth reply is lost, before or after the request was applied,
// for each n: it ends as if nothing had happened.
func TestPublish_LostReplies(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("-", 250_000)
	big := func(v string) map[string]string {
		keys := map[string]string{"a": v, "b": v, "d/c": v, "d/e": v}
		if v == "2" {
			for k := range keys {
				keys[k] += large
			}
		}
		return keys
	}
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		for _, beforeApply := range []bool{true, false} {
			name := fmt.Sprintf("%s/%v", layout, beforeApply)
			if testhelp.NotToday(name, 4) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lostReplies(t, layout, beforeApply, big)
			})
		}
	}
}

func lostReplies(t *testing.T, layout string, beforeApply bool, keys func(string) map[string]string) {
	t.Helper()
	for n := 1; ; n++ {
		struck := false
		bubble(t, func(t *testing.T, z *memzk.Server) {
			s := join(t, z)
			_, err := Publish(t.Context(), s, PublishConfig{Path: "/c", Layout: layout, Keys: bytesOf(keys("1"))})
			must(t, err)
			lost := z.LoseReply(memzk.AnyOp, n, beforeApply)
			res, err := Publish(t.Context(), s, PublishConfig{Path: "/c", Keys: bytesOf(keys("2")), Force: true})
			if err != nil {
				t.Errorf("reply %d lost: %v", n, err)
			}
			select {
			case <-lost:
				struck = true
			default:
			}
			z.ClearFaults()
			tree, err := config.Read(t.Context(), s, "/c")
			must(t, err)
			if tree.Generation != res.Generation || !has(keys("2"))(tree) {
				t.Errorf("reply %d lost: %s, published %+v", n, show(tree), res)
			}
			must(t, s.Close())
		})
		if !struck || t.Failed() {
			t.Logf("%d replies", n-1)
			return
		}
	}
}

// A reader finds a version half collected: it reads ready again.
func TestWatcher_VersionGoneWhileReading(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		for i := range 3 {
			_, err := Publish(t.Context(), s, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"a": fmt.Sprint(i)})})
			must(t, err)
		}
		reader := join(t, z)
		z.Delay(jute.OpMultiRead, time.Second)
		f := follow(t, reader, config.Config{Name: "c", Path: "/c"})
		after(500 * time.Millisecond) // It has read version 3 and asks for the bucket.
		z.Delay(jute.OpMultiRead, 0)
		_, err := Publish(t.Context(), s, PublishConfig{Path: "/c", Keys: bytesOf(map[string]string{"a": "4"})})
		must(t, err)
		must(t, z.Delete("/c/versions/0000000003"))
		after(time.Minute)
		if !has(map[string]string{"a": "4"})(f.last()) {
			t.Errorf("passed on %s", show(f.last()))
		}
		must(t, f.stop())
		must(t, reader.Close())
		must(t, s.Close())
	})
}
