package bench

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// quiet keeps the library's log out of the table.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect opens a session of the client library alone.
func connect(ctx context.Context, addr string, m *meter) (*zk.Conn, error) {
	c, events, err := zk.Connect([]string{addr}, time.Minute, zk.WithDialer(m.dialer), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		ev, err := await(ctx, events)
		if err != nil {
			c.Close()
			return nil, err
		}
		if ev.State == zk.StateHasSession {
			return c, nil
		}
	}
}

// fileFloor is the least program that keeps one file equal to the keys of a tree.
// It has a watch on each key. For each event it makes one read with a watch, writes
// the file from memory and renames it.
type fileFloor struct {
	c      *zk.Conn
	path   string
	sync   bool
	keys   []string
	values [][]byte
	fired  chan int
	done   chan struct{}
	wg     sync.WaitGroup
	err    error
}

func newFileFloor(ctx context.Context, addr string, m *meter, keys []string, path string, sync bool) (*fileFloor, error) {
	c, err := connect(ctx, addr, m)
	if err != nil {
		return nil, err
	}
	f := &fileFloor{
		c: c, path: path, sync: sync, keys: keys, values: make([][]byte, len(keys)),
		fired: make(chan int, len(keys)), done: make(chan struct{}),
	}
	for i := range keys {
		if err := f.read(i); err != nil {
			f.close()
			return nil, err
		}
	}
	if err := f.write(); err != nil {
		f.close()
		return nil, err
	}
	f.wg.Go(f.run)
	return f, nil
}

func (f *fileFloor) read(i int) error {
	data, _, events, err := f.c.GetW(f.keys[i])
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	f.values[i] = data
	f.wg.Go(func() {
		select {
		case <-events:
			f.fired <- i
		case <-f.done:
		}
	})
	return nil
}

func (f *fileFloor) write() error {
	var b bytes.Buffer
	for i, k := range f.keys {
		b.WriteString(k[len(k)-9:])
		b.WriteByte('=')
		b.Write(f.values[i])
		b.WriteByte('\n')
	}
	return replace(f.path, b.Bytes(), f.sync)
}

func (f *fileFloor) run() {
	for {
		select {
		case i := <-f.fired:
			f.err = f.read(i)
			for more := true; more && f.err == nil; { // Changes that came meanwhile go into the same file.
				select {
				case i := <-f.fired:
					f.err = f.read(i)
				default:
					more = false
				}
			}
			if f.err == nil {
				f.err = f.write()
			}
			if f.err != nil {
				return
			}
		case <-f.done:
			return
		}
	}
}

func (f *fileFloor) close() {
	close(f.done)
	f.wg.Wait()
	f.c.Close()
}

// groupFloor is the least program that follows the names and data of the
// children of one znode, and keeps a file of the data if it has one.
type groupFloor struct {
	c    *zk.Conn
	path string
	file string // synced and renamed at each change; "": none
	data map[string][]byte
	news chan int // number of members, at each change
	done chan struct{}
	wg   sync.WaitGroup
}

func newGroupFloor(ctx context.Context, addr string, m *meter, path, file string) (*groupFloor, error) {
	c, err := connect(ctx, addr, m)
	if err != nil {
		return nil, err
	}
	g := &groupFloor{c: c, path: path, file: file, data: map[string][]byte{}, news: make(chan int, 64), done: make(chan struct{})}
	events, err := g.list()
	if err == nil {
		err = g.write()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	g.wg.Go(func() {
		for {
			select {
			case <-events:
			case <-g.done:
				return
			}
			if events, err = g.list(); err != nil {
				return
			}
			if g.file != "" {
				if err = g.write(); err != nil {
					return
				}
				continue
			}
			g.news <- len(g.data)
		}
	})
	return g, nil
}

func (g *groupFloor) list() (<-chan zk.Event, error) {
	names, _, events, err := g.c.ChildrenW(g.path)
	if err != nil {
		return nil, err
	}
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
		if _, ok := g.data[name]; ok {
			continue
		}
		data, _, _, err := g.c.GetW(g.path + "/" + name)
		if err != nil {
			return nil, err
		}
		g.data[name] = data
	}
	for name := range g.data {
		if !present[name] {
			delete(g.data, name)
		}
	}
	return events, nil
}

// write writes the file.
func (g *groupFloor) write() error {
	if g.file == "" {
		return nil
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(g.data)) {
		b.Write(g.data[name])
		b.WriteByte('\n')
	}
	return replace(g.file, b.Bytes(), true)
}

func (g *groupFloor) close() {
	close(g.done)
	g.c.Close()
	g.wg.Wait()
}
