package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// TestTreeSeeds runs publishers, a foreign writer and readers in virtual time under
// random faults. The invariants: what a reader passes on is always one whole
// generation, never an older one after a newer one nor the same one again, and in
// the end, when the faults are over, it is the last one that was published. In a third of
// the programs the layout changes, and the tree is deleted, restored, rolled back and
// collected. There generations have no order.
//
// Servers keep events from who may not read a znode. So a flat tree may show a key
// that was closed as it was before, and one whose ready was closed shows the keys
// that change after it.
func TestTreeSeeds(t *testing.T) { testhelp.Seeds(t, 2*time.Second, simulateTree) }

// treeWorld is one simulation.
type treeWorld struct {
	t      *testing.T
	z      *memzk.Server
	rng    *rand.Rand
	layout string // empty: of both layouts; then configs are also deleted, restored, converted and collected

	published string // the value of the last publish that succeeded

	mu      sync.Mutex          // guards what follows
	hidden  map[string]struct{} // keys, and directories of keys, that were ever closed
	unheard map[int64]struct{}  // generations whose ready was ever closed
}

func simulateTree(t *testing.T, seed uint64) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		w := &treeWorld{t: t, z: z, rng: rand.New(rand.NewPCG(seed, 7)), hidden: map[string]struct{}{}, unheard: map[int64]struct{}{}}
		w.layout = []string{config.LayoutFlat, config.LayoutVersioned, ""}[seed%3]
		w.run()
	})
}

func (w *treeWorld) run() {
	t := w.t
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var readers []*simReader
	for range 2 {
		r := &simReader{w: w, watcher: config.NewWatcher(config.Config{Name: "c", Path: "/c"})}
		readers = append(readers, r)
		wg.Go(func() { r.run(ctx) })
	}
	writing, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for n := range 2 {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 1))
		writers.Go(func() { w.publish(writing, n, rng) })
	}
	for range 4 + w.rng.IntN(8) {
		after(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
		w.fault()
	}
	w.z.ClearFaults()
	w.z.Start()
	w.z.CatchUp("r:2181")
	w.setACL(openACL, 1)
	stop()
	writers.Wait()
	w.settle()
	want := view.TreeOf("", "", simKeys(w.published))
	for i, r := range readers {
		for end := time.Now().Add(3 * time.Minute); !r.shows(want) && time.Now().Before(end); {
			after(time.Second)
		}
		if !r.shows(want) {
			t.Errorf("reader %d ends with %s, published was %q", i, show(r.newest()), w.published)
		}
	}
	cancel()
	wg.Wait()
}

// simKeys are the keys of one publish: all have its value, and their number
// depends on it.
func simKeys(value string) map[string]string {
	keys := map[string]string{}
	for i := range 3 + len(value)%3 {
		keys[fmt.Sprintf("d%d/k%d", i%2, i)] = value
	}
	return keys
}

// publish publishes again and again, in sessions that come and go.
func (w *treeWorld) publish(ctx context.Context, id int, rng *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		s, err := session.Dial(ctx, session.Config{Servers: []string{"w:2181"}, Timeout: 3 * time.Second, Dial: w.z.Dial})
		if err != nil {
			return
		}
		for range 1 + rng.IntN(4) {
			w.publishOnce(ctx, s, fmt.Sprintf("%d-%d-%d", id, n, rng.IntN(100_000)), rng)
		}
		_ = s.Close()
	}
}

// publishOnce publishes one value, and dies at a random step now and then.
func (w *treeWorld) publishOnce(ctx context.Context, s *session.Session, value string, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20))*time.Second)
	defer cancel()
	die := rng.IntN(12)
	cfg := PublishConfig{Path: "/c", Layout: w.layout, Keys: bytesOf(simKeys(value)), Finish: true, Force: true, Author: "a", Host: "h"}
	cfg.step = func(string) error {
		if die--; die < 0 && rng.IntN(4) == 0 {
			return errors.New("died")
		}
		return nil
	}
	if w.layout != "" || !w.other(ctx, s, cfg, rng) {
		_, _ = Publish(ctx, s, cfg)
	}
	wait := time.NewTimer(time.Duration(rng.IntN(1500)) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// other does something else than a publish, now and then.
func (w *treeWorld) other(ctx context.Context, s *session.Session, cfg PublishConfig, rng *rand.Rand) bool {
	switch rng.IntN(12) {
	case 0, 1:
		_, _ = Delete(ctx, s, "/c", "ann", "")
	case 2, 3:
		_, _ = Restore(ctx, s, "/c", "ann")
	case 4, 5:
		_, _ = Convert(ctx, s, cfg, false)
	case 6:
		_, _ = GC(ctx, s, "/c", 1, nil)
	case 7:
		_, _ = Rollback(ctx, s, cfg, 0)
	case 8: // somebody takes the versions away, so that the next tree may be a flat one
		_, _ = Delete(ctx, s, "/c", "ann", "")
		cfg.Layout = config.LayoutFlat
		_, _ = Publish(ctx, s, cfg)
	default:
		return false
	}
	return true
}

// settle publishes the last value, when the faults are over.
func (w *treeWorld) settle() {
	s := join(w.t, w.z, "w:2181")
	w.published = "the end"
	_, err := Publish(w.t.Context(), s, PublishConfig{Path: "/c", Layout: w.layout, Keys: bytesOf(simKeys(w.published)), Finish: true, Force: true})
	must(w.t, err)
	must(w.t, s.Close())
}

// fault injects one fault, or ends all.
func (w *treeWorld) fault() {
	ops := []int32{jute.OpGetData, jute.OpGetChildren2, jute.OpGetChildren, jute.OpExists, jute.OpMultiRead, jute.OpSetWatches, jute.OpAddWatch}
	switch w.rng.IntN(16) {
	case 0:
		w.z.DropConnections()
	case 1:
		if ids := w.z.SessionIDs(); len(ids) > 0 {
			w.z.ExpireSession(ids[w.rng.IntN(len(ids))])
		}
	case 2, 3:
		ops := []int32{jute.OpMulti, jute.OpGetData, jute.OpGetChildren2, jute.OpExists, memzk.AnyOp}
		w.z.LoseReply(ops[w.rng.IntN(len(ops))], 1+w.rng.IntN(5), w.rng.IntN(2) == 0)
	case 4:
		w.z.Delay(jute.OpGetData, time.Duration(w.rng.IntN(300))*time.Millisecond)
	case 5:
		w.z.Delay(jute.OpMulti, time.Duration(w.rng.IntN(300))*time.Millisecond)
	case 6:
		w.z.Partition([]string{"r:2181", "w:2181"}[w.rng.IntN(2)])
	case 7:
		w.z.Restart()
	case 8:
		w.z.Lag("r:2181")
	case 9:
		w.z.CatchUp("r:2181")
	case 10:
		codes := []int32{jute.ErrCodeThrottled, jute.ErrCodeNoAuth, jute.ErrCodeSystemError, jute.ErrCodeSessionMoved}
		w.z.RefuseWith(ops[w.rng.IntN(len(ops))], codes[w.rng.IntN(len(codes))])
	case 11:
		w.z.HangUp(ops[w.rng.IntN(len(ops))])
	case 12, 13:
		if w.layout != "" {
			w.setACL(closedACL, 4)
		}
	case 14:
		w.setACL(openACL, 1)
	default:
		w.z.ClearFaults()
	}
}

// setACL changes the ACL of one znode in n of the tree.
func (w *treeWorld) setACL(acl []jute.ACL, n int) {
	tree := w.z.Tree()
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		if rel, ok := strings.CutPrefix(path, "/c/"); ok && w.rng.IntN(n) == 0 {
			if acl[0].Perms&jute.PermRead == 0 {
				w.hide(rel, tree)
			}
			_ = w.z.SetACL(path, acl) // it may be gone by now
		}
	}
}

// hide notes that readers may not hear of a znode of a flat tree any more.
func (w *treeWorld) hide(rel string, tree map[string]memzk.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.layout != config.LayoutFlat:
	case rel == trees.ElemReady:
		w.unheard[tree[trees.ReadyPath("/c")].Stat.Czxid] = struct{}{}
	default:
		w.hidden[rel] = struct{}{}
	}
}

// heard are the keys of a tree of whose changes readers hear: of all, but for those
// that are hidden, and of none when its ready is.
func (w *treeWorld) heard(tree *view.Tree) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := map[string]string{}
	if _, ok := w.unheard[tree.Generation]; ok {
		return keys
	}
	tree.Walk("", func(path string, k view.Key) bool {
		if !w.isHidden(path) {
			keys[path] = string(k.Value)
		}
		return true
	})
	return keys
}

// whole reports whether keys that were heard of are of one publish, with none missing.
func (w *treeWorld) whole(heard map[string]string) bool {
	for _, value := range heard {
		w.mu.Lock()
		want := simKeys(value)
		maps.DeleteFunc(want, func(key, _ string) bool { return w.isHidden(key) })
		w.mu.Unlock()
		return maps.Equal(heard, want)
	}
	return true
}

// isHidden reports whether a key, or the list that it stands in, was ever closed.
func (w *treeWorld) isHidden(key string) bool {
	_, self := w.hidden[key]
	_, list := w.hidden[key[:strings.IndexByte(key, '/')]]
	return self || list
}

// simReader follows the tree in one session after another.
type simReader struct {
	w       *treeWorld
	watcher *config.Watcher

	mu   sync.Mutex // guards last
	last *view.Tree
}

// newest returns what was passed on last; nil: nothing.
func (r *simReader) newest() *view.Tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// shows reports whether the newest tree has exactly the keys of want.
func (r *simReader) shows(want *view.Tree) bool {
	last := r.newest()
	return last != nil && last.SameKeys(want)
}

func (r *simReader) run(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{"r:2181", "q:2181"}, Timeout: 4 * time.Second, Dial: r.w.z.Dial})
		if err != nil {
			return
		}
		if err := r.watcher.Run(ctx, s, r.check); err != nil && s.Context().Err() == nil {
			r.w.t.Errorf("run: %v", err)
		}
		_ = s.Close()
	}
}

// check checks the invariants of one tree.
func (r *simReader) check(u view.Update) {
	tree := u.(*view.Tree)
	heard := r.w.heard(tree)
	if !r.w.whole(heard) {
		r.w.t.Errorf("a mix: %s", show(tree))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.last; last != nil {
		again := tree.Generation == last.Generation && maps.Equal(heard, r.w.heard(last)) && !tree.SameKeys(last)
		if tree.Generation <= last.Generation && !again && r.w.layout != "" {
			r.w.t.Errorf("generation %d after %d: %s after %s", tree.Generation, last.Generation, show(tree), show(last))
		}
	}
	r.last = tree
}
