package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/template"
)

// whole renders every key of the tree, as the floor does.
const whole = "{{ range tree \"app\" }}{{ .Key }}={{ .Value }}\n{{ end }}"

// running is an agent in this process.
type running struct {
	*agent.Agent

	cancel context.CancelFunc
	done   chan error
}

// startAgent runs an agent that follows the plain tree root and keeps the
// given files.
func (e *env) startAgent(ctx context.Context, root string, m *meter, bundles ...apply.Config) (*running, error) {
	zk := e.zookeeper()
	zk.Dial = m.dial
	return runAgent(ctx, agent.Config{
		ID: "bench", Host: "bench", OnStop: "leave", ZooKeeper: zk,
		Configs: []config.Config{{Name: "app", Path: root, Layout: config.LayoutPlain}}, Bundles: bundles,
	})
}

// runAgent runs an agent and waits until it is ready.
func runAgent(ctx context.Context, cfg agent.Config) (*running, error) {
	a, err := agent.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running{Agent: a, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- a.Run(ctx) }()
	if _, err := await(ctx, a.Ready()); err != nil {
		_ = r.stop()
		return nil, fmt.Errorf("start agent: %w", err)
	}
	return r, nil
}

func (r *running) stop() error {
	r.cancel()
	return <-r.done
}

// file is a bundle of one file.
func file(path, contents string) apply.Config {
	return apply.Config{Name: filepath.Base(path), Templates: []apply.FileConfig{{
		Name: filepath.Base(path), Contents: contents,
		Destination: func(*template.Each) (string, error) { return path, nil },
	}}}
}

// lane is one program that keeps a file, with the tree it follows.
type lane struct {
	keys  []string
	file  *arrivals
	meter meter
	cost  time.Duration // processor time
	took  samples
}

// lane makes a tree of n keys and a directory for its file.
func (e *env) lane(ctx context.Context, name string, n int) (*lane, string, error) {
	root, err := e.root(ctx)
	if err != nil {
		return nil, "", err
	}
	l := &lane{keys: keys(root, n)}
	if err = e.seed(ctx, l.keys, []byte("value-0000000000")); err != nil {
		return nil, "", err
	}
	dir := filepath.Join(e.dir, filepath.Base(root)+"-"+name)
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	l.file, err = watchFile(filepath.Join(dir, "out.conf"))
	return l, root, err
}

// ourLane is a lane with an agent that has written its file, the root of its tree,
// and what ends it.
func (e *env) ourLane(ctx context.Context, name string, n int) (*lane, string, func(), error) {
	l, root, err := e.lane(ctx, name, n)
	if err != nil {
		return nil, "", nil, err
	}
	a, err := e.startAgent(ctx, root, &l.meter, file(l.file.path, whole))
	if err != nil {
		l.file.close()
		return nil, "", nil, err
	}
	stop := func() {
		_ = a.stop()
		l.file.close()
	}
	if _, err = l.file.next(ctx); err != nil {
		stop()
		return nil, "", nil, err
	}
	return l, root, stop, nil
}

// latency measures from the reply to the writer's set to the renamed file.
func latency(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{1, 100}, []int{1, 100, 1000, 10000, 50000}) {
		if err := latencyOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func latencyOf(ctx context.Context, e *env, n int) error {
	lanes, stop, err := e.lanes(ctx, n)
	defer stop()
	if err != nil {
		return err
	}
	rounds := pick(e, 20, 200)
	switch {
	case n >= 50000:
		rounds = 20
	case n >= 10000:
		rounds = pick(e, 20, 60)
	}
	// Exclude the requests that an agent makes once after its first file.
	for _, l := range lanes {
		for i := range 3 {
			if err := e.change(ctx, l, 2*rounds+i); err != nil {
				return err
			}
		}
		l.took, l.cost = nil, 0
	}
	before := [3]count{lanes[0].meter.now(), lanes[1].meter.now(), lanes[2].meter.now()}
	ours, floor, synced := lanes[0], lanes[1], lanes[2]
	row := func() Row {
		return compareSamples("latency, floor that syncs too", n, ours.took, synced.took, 1.1, "the same promise on both sides")
	}
	err = e.turns(rounds, row, func(i int) error {
		for _, l := range lanes {
			if err := e.change(ctx, l, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rounds = len(ours.took)
	e.add(compareSamples("latency: set to renamed file", n, ours.took, floor.took, 1.2, "floor does not sync the file"))
	e.add(row())
	e.add(compare("processor per change, with the writer", n, "ms", ms(ours.cost)/float64(rounds), ms(synced.cost)/float64(rounds), 0, ""))
	was := ours.meter.now().since(before[0])
	base := floor.meter.now().since(before[1])
	e.add(compare("requests per change", n, "requests", per(was.requests, rounds), per(base.requests, rounds), 1, ""))
	e.add(compare("bytes per change", n, "bytes", per(was.sent+was.received, rounds), per(base.sent+base.received, rounds), 1.2, ""))
	return nil
}

func per(n int64, rounds int) float64 { return float64(n) / float64(rounds) }

// lanes starts zkagent, the floor, and the floor that syncs, each on a tree of
// its own.
func (e *env) lanes(ctx context.Context, n int) (lanes [3]*lane, stop func(), err error) { //nolint:nonamedreturns // Three of them.
	var ends []func()
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	for i, name := range []string{"ours", "floor", "synced"} {
		l, root, err := e.lane(ctx, name, n)
		if err != nil {
			return lanes, stop, err
		}
		lanes[i] = l
		ends = append(ends, l.file.close)
		if i == 0 {
			a, failed := e.startAgent(ctx, root, &l.meter, file(l.file.path, whole))
			if failed != nil {
				return lanes, stop, failed
			}
			ends = append(ends, func() { _ = a.stop() })
			continue
		}
		f, err := newFileFloor(ctx, e.server.Addr(), &l.meter, l.keys, l.file.path, i == 2)
		if err != nil {
			return lanes, stop, err
		}
		ends = append(ends, f.close)
	}
	for _, l := range lanes {
		if _, err := l.file.next(ctx); err != nil {
			return lanes, stop, fmt.Errorf("first file: %w", err)
		}
	}
	return lanes, stop, nil
}

// change sets one key and waits for the file.
func (e *env) change(ctx context.Context, l *lane, i int) error {
	value := fmt.Sprintf("value-%010d", i+1)
	before := cpu()
	if _, err := e.writer.Set(ctx, l.keys[i*7919%len(l.keys)], []byte(value), -1); err != nil {
		return err
	}
	acked := time.Now()
	at, err := l.file.next(ctx)
	if err != nil {
		return fmt.Errorf("change %d: %w", i, err)
	}
	l.cost += cpu() - before
	l.took = append(l.took, max(at.Sub(acked), time.Microsecond))
	return nil
}
