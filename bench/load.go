package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/zktest/raw"
	"github.com/zkagent/zkagent/session"
)

// forest makes n leaves below directories of 100 each, and returns the leaves.
func (e *env) forest(ctx context.Context, n int) (string, []string, error) {
	root, err := e.root(ctx)
	if err != nil {
		return "", nil, err
	}
	var dirs, leaves []string
	for d := range max(n/100, 1) {
		dir := fmt.Sprintf("%s/dir-%04d", root, d)
		dirs = append(dirs, dir)
		leaves = append(leaves, keys(dir, min(n, 100))...)
	}
	if err := e.seed(ctx, dirs, nil); err != nil {
		return "", nil, err
	}
	return root, leaves, e.seed(ctx, leaves, make([]byte, 200))
}

// load reads a tree for the first time, with watches, and then again what
// changed during an outage.
func load(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{500}, []int{1000, 20000, 50000}) {
		if err := loadOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func loadOf(ctx context.Context, e *env, n int) error {
	root, leaves, err := e.forest(ctx, n)
	if err != nil {
		return err
	}
	var ours, floor, watching samples
	var used, base count
	row := func() Row {
		return compareSamples("initial load, all watched", n, ours, floor, 1.5, "floor: one recursive watch, multiRead")
	}
	err = e.turns(pick(e, 2, 15), row, func(int) error {
		t, c, err := e.loadFloor(ctx, root, false)
		if err != nil {
			return err
		}
		floor, base = append(floor, t), c
		if t, _, err = e.loadFloor(ctx, root, true); err != nil {
			return err
		}
		watching = append(watching, t)
		if t, c, err = e.loadOurs(ctx, root, n); err != nil {
			return err
		}
		ours, used = append(ours, t), c
		return nil
	})
	if err != nil {
		return err
	}
	e.add(row())
	e.add(compareSamples("initial load, floor that watches each", n, ours, watching, 1.5, "floor: multiRead and setWatches"))
	e.add(compare("initial load: requests", n, "requests", float64(used.requests), float64(base.requests), 0, ""))
	e.add(compare("initial load: bytes", n, "bytes", float64(used.sent+used.received), float64(base.sent+base.received), 0, ""))
	return e.resync(ctx, root, leaves)
}

func (e *env) loadOurs(ctx context.Context, root string, n int) (time.Duration, count, error) {
	var m meter
	s, err := e.dial(ctx, &m)
	if err != nil {
		return 0, count{}, err
	}
	defer func() { _ = s.Close() }()
	began, before := time.Now(), m.now()
	copied := mirror.New(s, root, mirror.Options{})
	defer copied.Close()
	snap, _, err := copied.Refresh(ctx)
	if err != nil {
		return 0, count{}, err
	}
	took := time.Since(began)
	if snap.Len() < n {
		return 0, count{}, fmt.Errorf("copy has %d of %d znodes", snap.Len(), n)
	}
	return took, m.now().since(before), nil
}

// loadFloor reads the tree with multiRead, a few requests under way at once: the
// lists of all directories, then data. It watches with one recursive watch, or
// with each sets a watch for the data and one for the children of each znode.
func (e *env) loadFloor(ctx context.Context, root string, each bool) (time.Duration, count, error) {
	var m meter
	nc, err := m.dial(ctx, "tcp", e.server.Addr())
	if err != nil {
		return 0, count{}, err
	}
	c, err := raw.Open(nc)
	if err != nil {
		return 0, count{}, err
	}
	defer c.Close()
	began, before := time.Now(), m.now()
	if !each {
		if _, err := c.Call(jute.OpAddWatch, raw.Body(root, jute.AddWatchPersistentRecursive)); err != nil {
			return 0, count{}, err
		}
	}
	var leaves []string
	dirs := []string{root}
	for range 2 {
		var next []string
		err = multiRead(c, jute.OpGetChildren, dirs, func(i int, d *jute.Decoder) {
			for _, name := range d.Strings() {
				next = append(next, dirs[i]+"/"+name)
			}
		})
		if err != nil {
			return 0, count{}, err
		}
		dirs, leaves = next, append(leaves, next...)
	}
	err = readLeaves(c, leaves)
	if err == nil && each {
		err = setWatches(c, leaves)
	}
	return time.Since(began), m.now().since(before), err
}

// readLeaves reads znodes and keeps them.
func readLeaves(c *raw.Conn, leaves []string) error {
	type node struct {
		data []byte
		stat jute.Stat
	}
	nodes := make(map[string]*node, len(leaves))
	return multiRead(c, jute.OpGetData, leaves, func(i int, d *jute.Decoder) {
		n := &node{data: d.Buffer()}
		_ = d.Get(&n.stat)
		nodes[leaves[i]] = n
	})
}

// setWatches watches data and children of the paths, from now on.
func setWatches(c *raw.Conn, paths []string) error {
	for chunk := range slices.Chunk(paths, 500) {
		var e jute.Encoder
		e.Put(c.Zxid, chunk, []string(nil), chunk)
		if err := c.Send(jute.XidSetWatches, jute.OpSetWatches, e.Bytes()); err != nil {
			return err
		}
	}
	for range slices.Collect(slices.Chunk(paths, 500)) {
		if _, err := c.Receive(); err != nil {
			return err
		}
	}
	return nil
}

// multiRead reads the paths with few requests, a few under way at once.
func multiRead(c *raw.Conn, op int32, paths []string, decode func(int, *jute.Decoder)) error {
	const batch, flights = 500, 4
	chunks := slices.Collect(slices.Chunk(paths, batch))
	room := make(chan struct{}, flights)
	var wg sync.WaitGroup
	defer wg.Wait()
	sendErr := make(chan error, 1)
	wg.Go(func() {
		for i, chunk := range chunks {
			room <- struct{}{}
			var e jute.Encoder
			for _, p := range chunk {
				e.Put(jute.MultiHeader{Type: op, Err: -1})
				e.String(p)
				e.Bool(false)
			}
			e.Put(jute.MultiHeader{Type: -1, Done: true, Err: -1})
			if err := c.Send(int32(i+1), jute.OpMultiRead, e.Bytes()); err != nil {
				sendErr <- err
				return
			}
		}
	})
	for i, chunk := range chunks {
		r, err := c.Receive()
		if err != nil {
			return err
		}
		<-room
		c.Zxid = max(c.Zxid, r.Zxid)
		d := jute.NewDecoder(r.Body)
		for j := range chunk {
			var h jute.MultiHeader
			if _ = d.Get(&h); h.Type != op {
				return errors.New("floor: a znode went while it was read")
			}
			decode(i*batch+j, d)
		}
		if d.Err() != nil {
			return d.Err()
		}
	}
	return nil
}

// resync cuts the connection, changes 100 keys, and measures from the moment a
// connection is allowed again to the moment the copy is exact.
func (e *env) resync(ctx context.Context, root string, leaves []string) error {
	var m meter
	s, err := e.dial(ctx, &m)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	copied := mirror.New(s, root, mirror.Options{})
	defer copied.Close()
	if _, _, err := copied.Refresh(ctx); err != nil {
		return err
	}
	var took samples
	var used count
	for i := range pick(e, 2, 7) {
		open := m.cut()
		value := "resync-" + strconv.Itoa(i)
		changed := make([]string, 0, 100)
		for j := range min(100, len(leaves)) {
			changed = append(changed, leaves[(j*197+i)%len(leaves)])
		}
		for _, p := range changed {
			if _, err := e.writer.Set(ctx, p, []byte(value), -1); err != nil {
				return err
			}
		}
		conn := s.Connection()
		before := m.now()
		open()
		connected, err := reconnected(ctx, s, conn)
		if err != nil {
			return err
		}
		if err := exact(ctx, copied, root, changed, value); err != nil {
			return err
		}
		took = append(took, time.Since(connected))
		used = m.now().since(before)
	}
	e.add(told("resync after a reconnect, 100 changed", len(leaves), took, resyncLimit(len(leaves)), "from the handshake on"))
	e.add(Row{Case: "resync: requests", Size: len(leaves), Unit: "requests", Ours: float64(used.requests), Note: "setWatches and one read per change"})
	return nil
}

// resyncLimit is in milliseconds: 100 for 20,000 znodes. Larger sizes have no limit.
func resyncLimit(n int) float64 {
	if n > 20000 {
		return 0
	}
	return 100
}

func reconnected(ctx context.Context, s *session.Session, conn uint64) (time.Time, error) {
	for {
		changed := s.Changed()
		if s.State() == session.Connected && s.Connection() != conn {
			return time.Now(), nil
		}
		if _, err := await(ctx, changed); err != nil {
			return time.Time{}, err
		}
	}
}

// exact refreshes the copy until every path has the value.
func exact(ctx context.Context, m *mirror.Mirror, root string, paths []string, value string) error {
	for {
		if _, err := await(ctx, m.Dirty()); err != nil {
			return err
		}
		snap, _, err := m.Refresh(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(paths, func(p string) bool {
			n, ok := snap.Get(p[len(root)+1:])
			return !ok || string(n.Data) != value
		}) {
			return nil
		}
	}
}
