package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// watched is a config tree that zkagent follows.
type watched struct {
	m    meter
	s    *session.Session
	news chan *view.Tree
	stop func()
}

func (e *env) watch(ctx context.Context, root, layout string) (*watched, *view.Tree, error) {
	w := &watched{news: make(chan *view.Tree, 64)}
	var err error
	if w.s, err = e.dial(ctx, &w.m); err != nil {
		return nil, nil, err
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	watcher := config.NewWatcher(config.Config{Name: "app", Path: root, Layout: layout})
	go func() {
		defer close(done)
		_ = watcher.Run(run, w.s, func(u view.Update) {
			if t, ok := u.(*view.Tree); ok {
				w.news <- t
			}
		})
	}()
	w.stop = func() {
		cancel()
		<-done
		_ = w.s.Close()
	}
	first, err := await(ctx, w.news)
	return w, first, err
}

// memory measures what a key costs that is held.
func memory(ctx context.Context, e *env) error {
	n := pick(e, 500, 10000)
	const size = 100
	root, err := e.root(ctx)
	if err != nil {
		return err
	}
	if err = e.seed(ctx, keys(root, n), make([]byte, size)); err != nil {
		return err
	}
	before := heap()
	w, t, err := e.watch(ctx, root, config.LayoutPlain)
	if err != nil {
		return err
	}
	defer w.stop()
	per := (heap() - before) / float64(n)
	runtime.KeepAlive(t)
	if t.Len() != n {
		return fmt.Errorf("tree has %d of %d keys", t.Len(), n)
	}
	e.add(Row{Case: "memory per key of 100 bytes", Size: n, Unit: "bytes", Ours: per, Limit: 1.5*(size+9) + 300, Note: "watched key by key"})
	return nil
}

// versioned measures a change of one key of a versioned tree.
func versioned(ctx context.Context, e *env) error {
	n := pick(e, 500, 10000)
	root, err := e.root(ctx)
	if err != nil {
		return err
	}
	all := make(map[string][]byte, n)
	for i := range n {
		all[fmt.Sprintf("key-%05d", i)] = fmt.Appendf(nil, "value-%010d", i)
	}
	publish := func() error {
		_, failed := fleet.Publish(ctx, e.writer, fleet.PublishConfig{Path: root, Layout: config.LayoutVersioned, Keys: all, Author: "bench", Host: "bench"})
		return failed
	}
	if err = publish(); err != nil {
		return err
	}
	watches, err := e.mntr(ctx, "zk_watch_count")
	if err != nil {
		return err
	}
	before := heap()
	w, _, err := e.watch(ctx, root, config.LayoutVersioned)
	if err != nil {
		return err
	}
	defer w.stop()
	per := (heap() - before) / float64(n)
	after, err := e.mntr(ctx, "zk_watch_count")
	if err != nil {
		return err
	}
	var took samples
	var used count
	for i := range pick(e, 3, 20) {
		all[fmt.Sprintf("key-%05d", i*31)] = fmt.Appendf(nil, "changed-%d", i)
		was := w.m.now()
		if err := publish(); err != nil {
			return err
		}
		began := time.Now()
		if _, err := await(ctx, w.news); err != nil {
			return err
		}
		took, used = append(took, time.Since(began)), w.m.now().since(was)
	}
	e.add(told("versioned: publish to view, one key changed", n, took, 0, ""))
	e.add(Row{Case: "versioned: requests per version", Size: n, Unit: "requests", Ours: float64(used.requests), Limit: 4})
	e.add(Row{Case: "versioned: bytes per version", Size: n, Unit: "bytes", Ours: float64(used.sent + used.received)})
	e.add(Row{Case: "versioned: watches on the server", Size: n, Unit: "watches", Ours: after - watches, Limit: 1})
	e.add(Row{Case: "versioned: memory per key of 16 bytes", Size: n, Unit: "bytes", Ours: per})
	return nil
}

// sessions simulates agents: many sessions in this process, each with a watch
// on one znode that is then changed.
func sessions(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{20}, []int{100, 1000, 5000}) {
		if err := sessionsOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func sessionsOf(ctx context.Context, e *env, n int) error {
	root, err := e.root(ctx)
	if err != nil {
		return err
	}
	cost, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	before, began := heap(), time.Now()
	all := make([]*session.Session, 0, n)
	defer func() {
		for _, s := range all {
			_ = s.Close()
		}
	}()
	watches := make([]*session.Watch, 0, n)
	for range n {
		s, err := e.dial(ctx, nil)
		if err != nil {
			return err
		}
		all = append(all, s)
		_, _, w, err := s.GetW(ctx, root)
		if err != nil {
			return err
		}
		watches = append(watches, w)
	}
	connected := time.Since(began)
	each := (heap() - before) / float64(n)
	held, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	began = time.Now()
	if _, err := e.writer.Set(ctx, root, []byte("go"), -1); err != nil {
		return err
	}
	for i, w := range watches {
		if _, err := await(ctx, w.C()); err != nil {
			return err
		}
		if data, _, err := all[i].Get(ctx, root); err != nil || string(data) != "go" {
			return errors.Join(err, errors.New("a session reads an old value after its event"))
		}
	}
	took := time.Since(began)
	after, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	e.add(Row{Case: "sessions: heap of each", Size: n, Unit: "bytes", Ours: each, Limit: 64 << 10, Note: "the library alone: 3 MB"})
	e.add(Row{Case: "sessions: connect, read and watch", Size: n, Unit: "ms each", Ours: ms(connected) / float64(n)})
	e.add(Row{Case: "sessions: one change read by all", Size: n, Unit: "ms", Ours: ms(took), Note: "one after the other"})
	e.add(Row{Case: "sessions: watches on the server", Size: n, Unit: "watches", Ours: held.watches - cost.watches, Limit: float64(n)})
	e.add(Row{Case: "sessions: packets to the server for it", Size: n, Unit: "packets", Ours: after.received - held.received, Note: "reads of all, the write, pings"})
	return nil
}
