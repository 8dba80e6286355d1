package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

var (
	openACL   = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}
	closedACL = []jute.ACL{{Perms: jute.PermAll &^ jute.PermRead, Scheme: "world", ID: "anyone"}}
)

// A tree that is converted under a follower of flat trees stays as it was there: no
// half of it is passed on while its keys are deleted, and the status says why. In
// layout auto the follower goes over, also where ready may not be read for a while.
func TestFollow_ConvertedUnderTheFollower(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutAuto} {
		for _, closed := range []bool{false, true} {
			if testhelp.NotToday(fmt.Sprint(layout, closed), 2) {
				continue
			}
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s, w := join(t, z, "r:2181"), join(t, z, "w:2181")
				keys := numbered(1500, "1")
				mustPublish(t, w, "/c", config.LayoutFlat, keys)
				f := follow(t, s, config.Config{Name: "c", Path: "/c", Layout: layout})
				after(time.Second)
				z.Delay(jute.OpMulti, 100*time.Millisecond) // the reader sees each step
				if closed {
					// Somebody who may, with an older tool: one request after the other.
					data := trees.Ready{Version: 1, Digest: trees.DigestOf(nil).String()}.Encode()
					must(t, z.Set("/c/ready", data))
					must(t, z.SetACL("/c/ready", closedACL))
					after(time.Second)
					for i := range 100 {
						must(t, z.Delete(fmt.Sprintf("/c/dir%d/key%04d", i%7, i)))
						after(10 * time.Millisecond)
					}
				} else if _, err := Convert(t.Context(), w, PublishConfig{Path: "/c"}, false); err != nil {
					t.Fatal(err)
				}
				after(2 * time.Minute)
				for _, tree := range f.all() {
					if tree.Len() != len(keys) {
						t.Errorf("layout %s, closed %v: passed on %s", layout, closed, show(tree))
					}
				}
				st := f.w.Status()
				if moved := layout == config.LayoutAuto && !closed; moved != (st.Layout == config.LayoutVersioned) || moved != (st.Err == nil) {
					t.Errorf("layout %s, closed %v: %+v", layout, closed, st)
				}
				must(t, f.stop())
				must(t, errors.Join(s.Close(), w.Close()))
			})
		}
	}
}

// No error of a server ends the following of a tree, in any layout.
func TestFollow_TransientErrors(t *testing.T) {
	t.Parallel()
	ops := []int32{jute.OpGetData, jute.OpExists, jute.OpGetChildren2, jute.OpGetChildren, jute.OpMultiRead, jute.OpSetWatches, jute.OpSync}
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned, config.LayoutPlain} {
		for _, code := range []int32{jute.ErrCodeThrottled, jute.ErrCodeSystemError, jute.ErrCodeNoAuth} {
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s, w := join(t, z, "r:2181"), join(t, z, "w:2181")
				if layout == config.LayoutPlain {
					flatTree(t, z, "1", false)
				} else {
					mustPublish(t, w, "/c", layout, simKeys("1"))
				}
				done := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				f := &follower{t: t, news: make(chan struct{}), w: config.NewWatcher(config.Config{Name: "c", Path: "/c", Layout: layout})}
				for _, op := range ops {
					z.RefuseWith(op, code)
				}
				go func() { done <- f.w.Run(ctx, s, f.up) }()
				for range 20 {
					after(7 * time.Second)
					for _, op := range ops {
						z.Allow(op)
					}
					after(500 * time.Millisecond)
					for _, op := range ops {
						z.RefuseWith(op, code)
					}
				}
				for _, op := range ops {
					z.Allow(op)
				}
				after(2 * time.Minute)
				if f.last() == nil {
					t.Errorf("layout %s, code %d: nothing passed on, %+v", layout, code, f.w.Status())
				}
				select {
				case err := <-done:
					t.Errorf("layout %s, code %d: ended with %v", layout, code, err)
					done <- nil
				default:
				}
				cancel()
				must(t, <-done)
				must(t, errors.Join(s.Close(), w.Close()))
			})
		}
	}
}

// Ready comes, changes and goes while its ACL keeps the events back.
func TestFollow_SwallowedEventsOfReady(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			s, w := join(t, z, "r:2181"), join(t, z, "w:2181")
			mustPublish(t, w, "/c", layout, simKeys("1"))
			f := follow(t, s, config.Config{Name: "c", Path: "/c"})
			after(time.Second)
			z.Delay(jute.OpExists, 0)
			if layout == config.LayoutVersioned {
				// A version, prepared; then ready is set while it is closed.
				mustPublish(t, w, "/c", layout, simKeys("22"))
				after(time.Second)
				r, _, err := trees.ReadReady(t.Context(), w, "/c")
				must(t, err)
				old, err := config.ReadVersion(t.Context(), w, "/c", 1)
				must(t, err)
				must(t, z.SetACL("/c/ready", closedACL))
				must(t, z.Set("/c/ready", trees.Ready{Version: 1, Digest: old.Digest, Previous: r.Version}.Encode()))
				must(t, z.SetACL("/c/ready", openACL))
			} else {
				must(t, z.SetACL("/c/ready", closedACL))
				must(t, z.Delete("/c/ready"))
				must(t, z.Set("/c/d0/k0", []byte("x")))
				must(t, z.CreateWith("/c/ready", nil, 0, closedACL))
				must(t, z.SetACL("/c/ready", openACL))
			}
			generations := len(f.all())
			after(70 * time.Second)
			if len(f.all()) == generations && layout == config.LayoutVersioned {
				t.Errorf("layout %s: nothing new seen: %+v", layout, f.w.Status())
			}
			if layout == config.LayoutFlat && f.last().Generation != z.Tree()["/c/ready"].Stat.Czxid {
				t.Error("the flat reader is in a former generation")
			}
			must(t, f.stop())
			must(t, errors.Join(s.Close(), w.Close()))
		})
	}
}

// A follower does not use a tree over max_bytes. It keeps the last tree; without one it
// passes nothing on. The status says by how much the tree is too large.
func TestFollow_MaxBytes(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned, config.LayoutPlain} {
		for _, small := range []bool{true, false} {
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s, w := join(t, z, "r:2181"), join(t, z, "w:2181")
				put := func(value string) {
					if layout == config.LayoutPlain {
						flatTree(t, z, value, false)
						return
					}
					keys := map[string]string{}
					for i := range 4 {
						keys[fmt.Sprintf("k%d", i)] = value
					}
					_, err := Publish(t.Context(), w, PublishConfig{Path: "/c", Layout: layout, Keys: bytesOf(keys), Force: true})
					must(t, err)
				}
				large := strings.Repeat("x", 300<<10)
				if small {
					put("1")
				} else {
					put(large)
				}
				f := follow(t, s, config.Config{Name: "c", Path: "/c", Layout: layout, MaxBytes: 1 << 20})
				after(time.Second)
				if small {
					put(large)
				}
				after(time.Minute)
				trees := f.all()
				if small != (len(trees) > 0) || small && layout != config.LayoutPlain && (len(trees) != 1 || !whole("1")(trees[0])) {
					t.Errorf("layout %s, small first %v: passed on %d trees", layout, small, len(trees))
				}
				if err := f.w.Status().Err; !errors.Is(err, config.ErrBounds) || !strings.Contains(err.Error(), "1.2 MiB in") || !strings.Contains(err.Error(), "0.2 MiB more") {
					t.Errorf("layout %s: %v", layout, err)
				}
				put("2")
				after(time.Minute)
				if last := f.last(); last == nil || !whole("2")(last) || f.w.Status().Err != nil {
					t.Errorf("layout %s, small first %v: not back: %+v", layout, small, f.w.Status())
				}
				must(t, f.stop())
				must(t, errors.Join(s.Close(), w.Close()))
			})
		}
	}
}

// A new session may be on a server that lags: it does not go back to an older tree.
func TestFollow_NewSessionOnALaggingServer(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.LayoutFlat, config.LayoutVersioned} {
		bubble(t, func(t *testing.T, z *memzk.Server) {
			w := join(t, z, "w:2181")
			mustPublish(t, w, "/c", layout, simKeys("1"))
			z.Lag("lag:2181")
			mustPublish(t, w, "/c", layout, simKeys("22"))
			f := &follower{t: t, news: make(chan struct{}), w: config.NewWatcher(config.Config{Name: "c", Path: "/c"})}
			for _, addr := range []string{"w:2181", "lag:2181"} {
				s := join(t, z, addr)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- f.w.Run(ctx, s, f.up) }()
				after(10 * time.Second)
				cancel()
				must(t, <-done)
				must(t, s.Close())
			}
			if trees := f.all(); len(trees) != 1 {
				t.Errorf("layout %s: passed on %d trees, the last is %s", layout, len(trees), show(f.last()))
			}
			must(t, w.Close())
		})
	}
}
