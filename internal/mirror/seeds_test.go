package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestSeeds follows a tree that others change in virtual time under random
// faults. The invariants: a snapshot is a tree, every znode in it had that data
// at that transaction, no znode goes back to an older state within a session
// on one server, and when the faults are over the copy equals the tree.
func TestSeeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
	})
}

const simRoot = "/base/r"

// sim is one simulation.
type sim struct {
	t   *testing.T
	z   *memzk.Server
	rng *rand.Rand
	opt Options

	others *rand.Rand // for one goroutine

	mu      sync.Mutex        // guards what follows
	history map[string]string // data by path and mzxid
	last    *Snapshot
}

func simulate(t *testing.T, seed uint64) {
	version := []string{"3.5", "3.8", "3.8", "3.9.3", "3.9"}[seed%5]
	z := memzk.New(memzk.Options{TickTime: 500 * time.Millisecond, Version: version})
	defer z.Close()
	if seed%6 == 0 {
		z.Refuse(jute.OpAddWatch) // until faults are cleared
	}
	w := &sim{t: t, z: z, rng: rand.New(rand.NewPCG(seed, 11)), history: map[string]string{}}
	w.opt.Depth, w.opt.Concurrency, w.opt.coverFrom = max(w.rng.IntN(5)-2, 0), 1+w.rng.IntN(4), 1+w.rng.IntN(8)
	if seed%7 == 0 {
		w.opt.MaxBytes = 1 + w.rng.Int64N(200)
		w.opt.Parts = seed%2 == 0
	}
	if seed%5 == 0 {
		w.opt.Settle = 10 * time.Millisecond
	}
	w.others = rand.New(rand.NewPCG(seed, 12))
	w.write(20)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.follow(ctx) })
	for range 8 + w.rng.IntN(16) {
		time.Sleep(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
		w.write(w.rng.IntN(12))
		if seed%3 != 1 { // Else the first connection lasts.
			w.fault()
		}
	}
	z.ClearFaults()
	z.Start()
	z.CatchUp("r:2181", "q:2181")
	w.reopen()
	// An event that an ACL has swallowed is found when its znode has its turn.
	for end := time.Now().Add(30 * time.Minute); !w.equal() && time.Now().Before(end); {
		time.Sleep(time.Second)
		synctest.Wait()
	}
	if !w.equal() {
		t.Errorf("the copy is\n%v\nand the tree\n%v", contents(w.newest()), w.tree())
	}
	cancel()
	wg.Wait()
}

// write changes the tree, as others do: some znodes come, change, go with all
// below, or come back.
func (w *sim) write(n int) {
	w.t.Helper()
	w.mu.Lock() // no reader may see a change before it is in the history
	defer w.mu.Unlock()
	for range n {
		path := simRoot
		for range w.rng.IntN(4) {
			path += fmt.Sprintf("/n%d", w.rng.IntN(4))
		}
		value := fmt.Sprint(w.rng.Uint32())
		switch {
		case !w.z.Exists(path):
			must(w.t, w.z.Create(path, []byte(value)))
		case w.rng.IntN(5) == 0:
			must(w.t, w.z.Delete(path))
			continue
		default:
			must(w.t, w.z.Set(path, []byte(value)))
		}
		for p, node := range w.z.Tree() { // parents have come, too
			w.history[stamp(p, node.Stat.Mzxid)] = string(node.Data)
		}
	}
}

func stamp(path string, mzxid int64) string { return fmt.Sprint(path, " at ", mzxid) }

// fault injects one fault, or ends all.
func (w *sim) fault() {
	ops := []int32{jute.OpGetData, jute.OpGetChildren2, jute.OpExists, jute.OpMultiRead, jute.OpSetWatches, jute.OpAddWatch, jute.OpRemoveWatches, memzk.AnyOp}
	switch w.rng.IntN(21) {
	case 0, 1:
		w.z.DropConnections()
	case 2:
		for _, id := range w.z.SessionIDs() {
			w.z.ExpireSession(id)
		}
	case 3, 4:
		w.z.LoseReply(ops[w.rng.IntN(len(ops))], 1+w.rng.IntN(6), w.rng.IntN(2) == 0)
	case 5:
		w.z.Delay(ops[w.rng.IntN(len(ops))], time.Duration(w.rng.IntN(400))*time.Millisecond)
	case 6:
		w.z.Partition("r:2181")
	case 7:
		w.z.CutServerToClient()
	case 8:
		w.z.CutClientToServer("r:2181")
	case 9:
		w.z.Restart()
	case 10:
		w.z.Lag([]string{"r:2181", "q:2181"}[w.rng.IntN(2)])
	case 11:
		w.z.CatchUp("r:2181", "q:2181")
	case 12:
		codes := []int32{jute.ErrCodeThrottled, jute.ErrCodeNoAuth, jute.ErrCodeSessionMoved}
		w.z.RefuseWith(ops[w.rng.IntN(len(ops)-1)], codes[w.rng.IntN(len(codes))])
	case 13:
		w.z.RefuseWith(jute.OpGetChildren2, jute.ErrCodeThrottled)
		w.z.RefuseWith(jute.OpGetChildren, jute.ErrCodeThrottled)
	case 14:
		w.z.HangUp(ops[w.rng.IntN(len(ops)-1)])
	case 15, 16, 17:
		w.close()
	case 18:
		w.reopen()
	default:
		w.z.ClearFaults()
	}
}

// close lets nobody read a znode.
func (w *sim) close() {
	for path := range w.z.Tree() {
		if strings.HasPrefix(path, simRoot) && w.rng.IntN(3) == 0 {
			must(w.t, w.z.SetACL(path, []jute.ACL{{Perms: jute.PermAll &^ jute.PermRead, Scheme: "world", ID: "anyone"}}))
		}
	}
}

// reopen lets everybody read everything.
func (w *sim) reopen() {
	for path := range w.z.Tree() {
		if strings.HasPrefix(path, simRoot) {
			must(w.t, w.z.SetACL(path, []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}))
		}
	}
}

// follow follows the tree in one session after the other.
func (w *sim) follow(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{"r:2181", "q:2181"}, Timeout: 4 * time.Second, Dial: w.z.Dial})
		if err != nil {
			return
		}
		var before *Snapshot
		var wg sync.WaitGroup
		wg.Go(func() { w.disturb(ctx, s) })
		err = copyTree(ctx, s, simRoot, w.opt, func(snap *Snapshot) {
			w.check(before, snap)
			before = snap
		})
		if err != nil && !errors.Is(err, session.ErrExpired) {
			w.t.Errorf("follow: %v", err)
		}
		_ = s.Close()
		wg.Wait()
	}
}

// disturb watches and follows parts of the same tree in the same session, again
// and again, as long as the session lasts.
func (w *sim) disturb(ctx context.Context, s *session.Session) {
	for s.Context().Err() == nil {
		root := []string{simRoot, simRoot, simRoot + "/n1", "/base"}[w.others.IntN(4)]
		opt := Options{Depth: w.others.IntN(2), coverFrom: 1 + w.others.IntN(4)}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(w.others.IntN(2000))*time.Millisecond)
		switch w.others.IntN(4) {
		case 0:
			_, _, watch, _ := s.GetW(ctx, root)
			defer watch.Stop()
		case 1:
			_, _, watch, _ := s.ChildrenW(ctx, root)
			defer watch.Stop()
		case 2:
			_, _, watch, _ := s.ExistsW(ctx, root)
			defer watch.Stop()
		default:
			_ = copyTree(ctx, s, root, opt, func(*Snapshot) {})
		}
		select {
		case <-ctx.Done():
		case <-s.Done():
		}
		cancel()
	}
}

// check checks one snapshot against the history and the one before it.
func (w *sim) check(before, snap *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = snap
	if w.opt.MaxBytes > 0 {
		kept := map[string]int64{}
		snap.Walk(func(rel string, n *Node) bool {
			kept[w.part(rel)] += int64(len(n.Data))
			return true
		})
		for name, size := range kept {
			if bytes, large := snap.Size(name); size > w.opt.MaxBytes || large != (bytes > w.opt.MaxBytes) {
				w.t.Errorf("%q: %d bytes kept, %d in all, too large %v; the limit is %d", name, size, bytes, large, w.opt.MaxBytes)
			}
		}
	}
	errs := snap.Errors()
	snap.Walk(func(rel string, n *Node) bool {
		if _, large := snap.Size(w.part(rel)); large || errs[rel] != nil {
			return true // it has its former state, or none
		}
		path := strings.TrimSuffix(simRoot+"/"+rel, "/")
		if want, ok := w.history[stamp(path, n.Stat.Mzxid)]; !ok || want != string(n.Data) {
			w.t.Errorf("%s holds %q at %d; it held %q (%v)", path, n.Data, n.Stat.Mzxid, want, ok)
		}
		if i := strings.LastIndexByte(rel, '/'); rel != "" {
			if _, ok := snap.Get(rel[:max(i, 0)]); !ok {
				w.t.Errorf("%s is there without its parent", path)
			}
		}
		if before != nil {
			if old, ok := before.Get(rel); ok && n.Stat.Mzxid < old.Stat.Mzxid {
				w.t.Errorf("%s went back from %d to %d", path, old.Stat.Mzxid, n.Stat.Mzxid)
			}
		}
		return true
	})
}

// part is the part of the tree that has its own bound.
func (w *sim) part(rel string) string {
	if !w.opt.Parts {
		return ""
	}
	name, _, _ := strings.Cut(rel, "/")
	return name
}

func (w *sim) newest() *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// tree is what the copy should be: data by relative path.
func (w *sim) tree() map[string]string {
	want := map[string]string{}
	for path, n := range w.z.Tree() {
		if rel, ok := strings.CutPrefix(path+"/", simRoot+"/"); ok {
			rel = strings.TrimSuffix(rel, "/")
			if w.opt.Depth == 0 || depth(rel) <= w.opt.Depth {
				want[rel] = string(n.Data)
			}
		}
	}
	return want
}

func (w *sim) equal() bool {
	snap := w.newest()
	if snap == nil {
		return false
	}
	tree, sizes := w.tree(), map[string]int64{}
	for rel, data := range tree {
		sizes[w.part(rel)] += int64(len(data))
	}
	copied := contents(snap)
	for rel := range tree {
		if size := sizes[w.part(rel)]; w.opt.MaxBytes > 0 && size > w.opt.MaxBytes {
			if bytes, large := snap.Size(w.part(rel)); !large || bytes != size || copied[rel] != "" {
				return false
			}
			tree[rel] = ""
		}
	}
	return maps.Equal(tree, copied)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
