package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
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
func (e *env) startAgent(ctx context.Context, root string, m *meter, bundles ...agent.BundleConfig) (*running, error) {
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
func file(path, contents string) agent.BundleConfig {
	return agent.BundleConfig{Name: filepath.Base(path), Templates: []agent.TemplateConfig{{
		Name: filepath.Base(path), Contents: contents,
		Destination: func(*agent.Each) (string, error) { return path, nil },
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
	// What an agent asks once, after its first file, is no part of a change.
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
		return compareSamples("latency, floor that syncs too", n, ours.took, synced.took, 1.2, "the same promise on both sides")
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

// fanout has many templates, each for a key of its own: one change may cost no
// more than with one.
func fanout(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{10}, []int{1, 200}) {
		if err := fanoutOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func fanoutOf(ctx context.Context, e *env, n int) error {
	l, root, err := e.lane(ctx, "fan", n)
	if err != nil {
		return err
	}
	defer l.file.close()
	bundles := make([]agent.BundleConfig, n)
	for i := range n {
		path := filepath.Join(filepath.Dir(l.file.path), "out-"+strconv.Itoa(i)+".conf")
		bundles[i] = file(path, fmt.Sprintf("{{ key \"app/key-%05d\" }}", i))
	}
	last, err := watchFile(filepath.Join(filepath.Dir(l.file.path), "out-"+strconv.Itoa(n-1)+".conf"))
	if err != nil {
		return err
	}
	defer last.close()
	a, err := e.startAgent(ctx, root, &l.meter, bundles...)
	if err != nil {
		return err
	}
	defer func() { _ = a.stop() }()
	if _, err := last.next(ctx); err != nil {
		return err
	}
	one := &lane{keys: l.keys[n-1:], file: last}
	for i := range pick(e, 10, 100) {
		if err := e.change(ctx, one, i); err != nil {
			return err
		}
	}
	e.add(Row{Case: "latency, one of many templates", Size: n, Unit: "ms", Ours: one.took.median(), Note: "size is the number of templates"})
	return nil
}

// burst makes a thousand changes as fast as they go.
func burst(ctx context.Context, e *env) error {
	l, _, stop, err := e.ourLane(ctx, "burst", 100)
	if err != nil {
		return err
	}
	defer stop()
	for i, n := range pick(e, []int{100}, []int{1000, 1000, 1000}) {
		if err := burstOf(ctx, e, l, n, i); err != nil {
			return err
		}
	}
	return nil
}

func burstOf(ctx context.Context, e *env, l *lane, n, run int) error {
	l.file.drain()
	before := l.meter.now()
	last := make(map[string]string, len(l.keys))
	for i := 0; i < n; i += 100 {
		ops := make([]session.Op, 0, 100)
		for j := range 100 {
			value := fmt.Sprintf("burst-%d-%d", run, i+j)
			ops = append(ops, session.SetOp(l.keys[j%len(l.keys)], []byte(value), -1))
			last[filepath.Base(l.keys[j%len(l.keys)])] = value
		}
		if _, err := e.writer.Multi(ctx, ops...); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, k := range l.keys {
		b.WriteString(filepath.Base(k) + "=" + last[filepath.Base(k)] + "\n")
	}
	want := b.String()
	renders := 0
	for {
		data, err := os.ReadFile(l.file.path)
		if err != nil {
			return err
		}
		if string(data) == want {
			break
		}
		if _, err := l.file.next(ctx); err != nil {
			return fmt.Errorf("the file is not exact after a burst: %w", err)
		}
		renders++
	}
	renders += l.file.drain()
	e.add(Row{Case: "burst: renders, final file exact", Size: n, Unit: "renders", Ours: float64(renders), Limit: 20})
	e.add(Row{Case: "burst: requests", Size: n, Unit: "requests", Ours: float64(l.meter.now().since(before).requests), Limit: float64(n)})
	return nil
}

// idle measures an agent with nothing to do.
func idle(ctx context.Context, e *env) error {
	l, _, stop, err := e.ourLane(ctx, "idle", 1000)
	if err != nil {
		return err
	}
	defer stop()
	// What an agent asks once after its start, on a busy machine late.
	for was := l.meter.now().requests - 1; was != l.meter.now().requests; {
		was = l.meter.now().requests
		if err := wait(ctx, pick(e, time.Second, 5*time.Second)); err != nil {
			return err
		}
	}
	d := pick(e, 2*time.Second, time.Minute)
	before, used := l.meter.now(), cpu()
	if err := wait(ctx, d); err != nil {
		return err
	}
	e.add(Row{Case: "idle: processor", Size: 1000, Unit: "ms/minute", Ours: ms(cpu()-used) * float64(time.Minute) / float64(d), Limit: 60, Note: "this whole process, its ping and those of the bench"})
	e.add(Row{Case: "idle: requests", Size: 1000, Unit: "requests", Ours: float64(l.meter.now().since(before).requests), Note: "beyond pings; 0 is wanted"})
	return nil
}

// wait waits for d.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
