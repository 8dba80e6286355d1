package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// crew is n programs in this process. Each keeps its own file.
type crew struct {
	meter meter    // of all together
	each  []*meter // of the hosts one by one; none of floors
	files *landings
	stop  func() // ends all and waits for them
}

// dialOf dials for a host, and counts for it and for all.
func (c *crew) dialOf(host *meter) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := c.meter.dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &metered{Conn: conn, m: host}, nil
	}
}

// landings reports when files in many directories are renamed into place.
type landings struct {
	w    *fsnotify.Watcher
	of   map[string]int // path to host
	c    chan landing
	done chan struct{}
}

// landing is one file in its place.
type landing struct {
	host int
	at   time.Time
}

// watchFiles makes a directory below dir for each of n hosts and watches for its
// file.
func watchFiles(dir string, n int) (*landings, []string, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, err
	}
	l := &landings{w: w, of: make(map[string]int, n), c: make(chan landing, 16*n), done: make(chan struct{})}
	paths := make([]string, n)
	for i := range paths {
		paths[i] = filepath.Join(dir, "host-"+strconv.Itoa(i), "out", "app.conf")
		l.of[paths[i]] = i
		err := os.MkdirAll(filepath.Dir(paths[i]), 0o700)
		if err == nil {
			err = w.Add(filepath.Dir(paths[i]))
		}
		if err != nil {
			return nil, nil, errors.Join(err, w.Close())
		}
	}
	go func() {
		defer close(l.done)
		for ev := range w.Events {
			if host, ok := l.of[ev.Name]; ok && ev.Has(fsnotify.Create) {
				l.c <- landing{host, time.Now()}
			}
		}
	}()
	return l, paths, nil
}

// all waits until every host has written its file once more, and returns how long
// each took from began.
func (l *landings) all(ctx context.Context, began time.Time) (samples, error) {
	took := make(samples, len(l.of))
	for left := len(took); left > 0; {
		a, err := await(ctx, l.c)
		if err != nil {
			return nil, fmt.Errorf("%d of %d files: %w", len(took)-left, len(took), err)
		}
		if took[a.host] == 0 {
			left--
		}
		took[a.host] = max(a.at.Sub(began), time.Microsecond)
	}
	return took, nil
}

func (l *landings) close() {
	_ = l.w.Close()
	for {
		select {
		case <-l.c:
		case <-l.done:
			return
		}
	}
}

// floorHost does the least that a host can do to follow one value. It has one
// watch. For each event it makes one read, which sets the watch again, and passes the
// value on.
type floorHost struct {
	c     *raw.Conn
	path  string
	got   func([]byte) error
	xid   int32
	fired bool // the watch, since the last look
}

// run always ends with an error, at the latest with that of its connection.
func (h *floorHost) run() error {
	for {
		data, err := h.read(h.path)
		if err == nil {
			err = h.got(data)
		}
		for err == nil && !h.fired {
			_, err = h.receive()
		}
		if h.fired = false; err != nil {
			return err
		}
	}
}

func (h *floorHost) read(path string) ([]byte, error) {
	h.xid++
	if err := h.c.Send(h.xid, jute.OpGetData, raw.Body(path, true)); err != nil {
		return nil, err
	}
	for {
		r, err := h.receive()
		switch {
		case err != nil:
			return nil, err
		case r.Xid != h.xid:
		case r.Err != 0:
			return nil, fmt.Errorf("floor: read %s: code %d", path, r.Err)
		default:
			return jute.NewDecoder(r.Body).Buffer(), nil
		}
	}
}

// receive notes events, and returns whatever came.
func (h *floorHost) receive() (raw.Reply, error) {
	r, err := h.c.Receive()
	h.fired = h.fired || err == nil && r.Xid == jute.XidNotification
	return r, err
}

// floorPing is how often floors ping, for sessions of a minute.
const floorPing = 15 * time.Second

// floorHosts starts n of them on one znode. The function that it returns ends their
// connections and waits for them.
func (e *env) floorHosts(ctx context.Context, m *meter, path string, n int, got func(host int, data []byte) error) (func(), error) {
	var wg sync.WaitGroup
	conns := make([]*raw.Conn, 0, n)
	pinging, cancel := context.WithCancel(ctx)
	stop := func() {
		cancel()
		for _, c := range conns {
			c.Drop()
		}
		wg.Wait()
	}
	for i := range n {
		nc, err := m.dial(ctx, "tcp", e.server.Addr())
		if err != nil {
			stop()
			return nil, err
		}
		c, err := raw.Open(nc, raw.Options{Timeout: time.Minute})
		if err != nil {
			stop()
			return nil, err
		}
		conns = append(conns, c)
		h := &floorHost{c: c, path: path, got: func(data []byte) error { return got(i, data) }}
		wg.Go(func() {
			if err := h.run(); pinging.Err() == nil && e.cfg.Log != nil {
				e.cfg.Log(fmt.Sprintf("floor %d has ended: %v", i, err))
			}
		})
	}
	wg.Go(func() {
		for wait(pinging, floorPing) == nil {
			for _, c := range conns {
				// A frame is one write, so that it may go beside the host's own.
				_ = c.Send(jute.XidPing, jute.OpPing, nil)
			}
		}
	})
	return stop, nil
}
