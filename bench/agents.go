package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// agentKeys is the size of the versioned tree that all agents follow.
const agentKeys = 1000

// agents measures a fleet of complete agents in this process, beside as many
// floors: the time from the request that commits a version to the renamed file of
// each agent.
func agents(ctx context.Context, e *env) error {
	n := pick(e, 10, 200)
	t, err := e.newTree(ctx)
	if err != nil {
		return err
	}
	goroutines, held := runtime.NumGoroutine(), heap()
	ours, err := e.agentCrew(ctx, t.root, n)
	if err != nil {
		return err
	}
	defer ours.stop()
	e.add(Row{Case: "agents: heap of each", Size: n, Unit: "bytes", Ours: (heap() - held) / float64(n), Note: fmt.Sprintf("one tree of %d keys, one template", agentKeys)})
	e.add(Row{Case: "agents: goroutines of each", Size: n, Unit: "goroutines", Ours: float64(runtime.NumGoroutine()-goroutines) / float64(n)})
	if err := e.unvoted(ctx, t, ours, n); err != nil {
		return err
	}
	return e.voted(ctx, t, ours, n)
}

// side is one of the programs that are measured in turns. It holds the times of its
// hosts by turn.
type side struct {
	crew  *crew
	rest  time.Duration                  // until it has written what it writes later
	write func(i int) (time.Time, error) // returns when the request was sent that commits

	median, p99, last samples
	cost              cost
	allocs, allocated float64 // objects and bytes, from the request that commits on
}

// turn lets the side's hosts follow one change.
func (s *side) turn(ctx context.Context, e *env, i int) (samples, error) {
	var took samples
	var began time.Time
	var allocs, allocated float64
	_, used, err := e.costOf(ctx, func() (time.Time, error) {
		var err error
		began, err = s.write(i)
		allocs, allocated = heapAllocated()
		return began, err
	}, func() error {
		var err error
		if took, err = s.crew.files.all(ctx, began); err != nil {
			return err
		}
		if err = wait(ctx, s.rest); err != nil {
			return err
		}
		return s.crew.quiet(ctx)
	})
	if err != nil {
		return nil, err
	}
	n, size := heapAllocated()
	s.allocs, s.allocated = s.allocs+n-allocs, s.allocated+size-allocated
	s.cost = s.cost.plus(used)
	for q, to := range map[float64]*samples{0.5: &s.median, 0.99: &s.p99, 1: &s.last} {
		*to = append(*to, time.Duration(took.at(q)*float64(time.Millisecond)))
	}
	return took, nil
}

// unvoted publishes without votes, in turns with a floor that reads the changed key.
func (e *env) unvoted(ctx context.Context, t *tree, crew *crew, n int) error {
	// Within two seconds agents report and save what they use.
	ours := &side{crew: crew, rest: pick(e, 0, 2*time.Second), write: func(i int) (time.Time, error) { return t.publish(ctx, "unvoted-"+strconv.Itoa(i)) }}
	floor, err := e.floorCrew(ctx, n)
	if err != nil {
		return err
	}
	defer floor.crew.stop()
	var all samples
	row := func() Row {
		note := fmt.Sprintf("%.0f of all turns; floor: one read; both sync the file", all.at(0.99))
		return compareSamples("agents: commit to renamed file, p99", n, ours.p99, floor.p99, 1.5, note)
	}
	before := crew.meter.now()
	err = e.turns(pick(e, 5, 25), row, func(i int) error {
		took, err := ours.turn(ctx, e, i)
		all = append(all, took...)
		if err == nil {
			_, err = floor.turn(ctx, e, i)
		}
		return err
	})
	if err != nil {
		return err
	}
	turns := len(ours.p99)
	used := crew.meter.now().since(before)
	e.add(row())
	e.add(compareSamples("agents: median host", n, ours.median, floor.median, 1.5, "the same"))
	e.add(compareSamples("agents: last host", n, ours.last, floor.last, 1.5, "the same"))
	e.add(Row{Case: "agents: requests a host, one version", Size: n, Unit: "requests", Ours: per(used.requests, n*turns), Limit: 4, Note: "1 read, its subscription, its status; a publication at once after another one may add one"})
	e.add(Row{Case: "agents: bytes a host, one version", Size: n, Unit: "bytes", Ours: per(used.sent+used.received, n*turns), Note: "one key changed"})
	hosts := float64(n * turns)
	e.add(compare("agents: allocations a host, one version", n, "objects", ours.allocs/hosts, floor.allocs/hosts, 0, "what the host writes later included"))
	e.add(compare("agents: bytes allocated a host, one version", n, "bytes", ours.allocated/hosts, floor.allocated/hosts, 0, "the same"))
	each := func(d time.Duration) float64 { return ms(d) / hosts }
	e.add(compare("agents: processor a host, one version", n, "ms", each(ours.cost.process), each(floor.cost.process), 0, "of the hosts' process"))
	e.add(compare("agents: server's processor a host", n, "ms", each(ours.cost.server), each(floor.cost.server), 0, "the same"))
	e.add(compare("agents: server's packets a host", n, "packets", ours.cost.packets/hosts, floor.cost.packets/hosts, 0, "mntr, both ways, pings included"))
	return nil
}

// quiet waits until no program of the crew sends requests.
func (c *crew) quiet(ctx context.Context) error {
	for {
		was := c.meter.now().requests
		if err := wait(ctx, 50*time.Millisecond); err != nil || c.meter.now().requests == was {
			return err
		}
	}
}

// voted rolls a version out to all agents at once. Every agent renders and checks
// it, votes, and waits for its grant before it changes its file.
func (e *env) voted(ctx context.Context, t *tree, ours *crew, n int) error {
	var took samples
	var used count
	for i := range pick(e, 1, 5) {
		r, err := t.prepare(ctx, "voted-"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		before, began := ours.meter.now(), time.Now()
		name, err := fleet.Propose(ctx, e.writer, fleet.Request{
			Root: t.root, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Strategy: fleet.Strategy{Parallel: n}, Who: "bench", Why: "bench", Base: r.Previous,
		})
		if err != nil {
			return err
		}
		each, err := ours.files.all(ctx, began)
		if err != nil {
			return fmt.Errorf("voted: %w", err)
		}
		took = append(took, time.Duration(each.at(1)*float64(time.Millisecond)))
		if err := e.done(ctx, t.root, name); err != nil {
			return err
		}
		if err := ours.quiet(ctx); err != nil {
			return err
		}
		used = ours.meter.now().since(before)
	}
	e.add(told("agents: proposal to the last renamed file, voted", n, took, 0, "all at once; every agent votes and is granted its turn"))
	e.add(Row{Case: "agents: requests a host, one voted version", Size: n, Unit: "requests", Ours: per(used.requests, n)})
	return nil
}

// done waits until a rollout is done.
func (e *env) done(ctx context.Context, root, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	var last *fleet.State
	err := fleet.Watch(ctx, e.writer, root, name, func(s *fleet.State) bool {
		last = s
		return s.Open() && s.Err() == nil
	})
	if err == nil {
		err = last.Err()
	}
	return err
}

// agentCrew starts agents that follow the tree, and waits for the file and the
// subscription of each.
func (e *env) agentCrew(ctx context.Context, root string, n int) (*crew, error) {
	dir := filepath.Join(e.dir, filepath.Base(root)+"-agents")
	files, paths, err := watchFiles(dir, n)
	if err != nil {
		return nil, err
	}
	c := &crew{files: files}
	all, err := e.runAgents(ctx, c, root, paths)
	c.stop = func() {
		var wg sync.WaitGroup
		for _, a := range all {
			wg.Go(func() { _ = a.stop() })
		}
		wg.Wait()
		files.close()
	}
	if err == nil {
		_, err = files.all(ctx, time.Now())
	}
	for err == nil {
		var there []fleet.Subscription
		if there, err = fleet.Subscribers(ctx, e.writer, root); len(there) == n {
			return c, nil
		}
		if err == nil {
			err = wait(ctx, 50*time.Millisecond)
		}
	}
	c.stop()
	return nil, err
}

// runAgents starts one agent for each file, in a state directory beside it.
func (e *env) runAgents(ctx context.Context, c *crew, root string, paths []string) ([]*running, error) {
	var all []*running
	for i, path := range paths {
		zk := e.zookeeper()
		own := &meter{}
		c.each = append(c.each, own)
		zk.Dial = c.dialOf(own)
		id := fmt.Sprintf("host-%03d", i)
		log := e.log
		if log != nil {
			log = log.With("host", id)
		}
		a, err := runAgent(ctx, agent.Config{
			ID: id, Host: id, Logger: log, NeverCoordinate: e.coordinators > 0 && i >= e.coordinators, StateDir: filepath.Join(filepath.Dir(filepath.Dir(path)), "state"), OnStop: "leave", ZooKeeper: zk,
			Configs: []config.Config{{Name: "app", Path: root, Layout: config.LayoutVersioned}},
			Bundles: []apply.Config{file(path, `{{ key "app/key-00000" }}`)},
		})
		if err != nil {
			return all, err
		}
		all = append(all, a)
	}
	return all, nil
}

// floorCrew starts floors on a znode of their own.
func (e *env) floorCrew(ctx context.Context, n int) (*side, error) {
	root, err := e.root(ctx)
	if err != nil {
		return nil, err
	}
	files, paths, err := watchFiles(filepath.Join(e.dir, filepath.Base(root)+"-floors"), n)
	if err != nil {
		return nil, err
	}
	c := &crew{files: files}
	end, err := e.floorHosts(ctx, &c.meter, root, n, func(host int, data []byte) error { return replace(paths[host], data, true) })
	c.stop = func() {
		if end != nil {
			end()
		}
		files.close()
	}
	if err == nil {
		_, err = files.all(ctx, time.Now())
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return &side{crew: c, write: func(i int) (time.Time, error) {
		began := time.Now()
		_, err := e.writer.Set(ctx, root, fmt.Appendf(nil, "turn-%d", i), -1)
		return began, err
	}}, nil
}

// tree is a versioned tree whose first key changes.
type tree struct {
	s    *session.Session
	root string
	keys map[string][]byte
}

// newTree publishes the first version.
func (e *env) newTree(ctx context.Context) (*tree, error) {
	root, err := e.root(ctx)
	if err != nil {
		return nil, err
	}
	t := &tree{s: e.writer, root: root, keys: make(map[string][]byte, agentKeys)}
	for i := range agentKeys {
		t.keys[fmt.Sprintf("key-%05d", i)] = fmt.Appendf(nil, "value-%010d", i)
	}
	_, err = fleet.Publish(ctx, t.s, t.config())
	return t, err
}

func (t *tree) config() fleet.PublishConfig {
	return fleet.PublishConfig{Path: t.root, Layout: config.LayoutVersioned, Keys: t.keys, Author: "bench", Host: "bench"}
}

// prepare writes a version in which the first key has another value.
func (t *tree) prepare(ctx context.Context, value string) (fleet.Result, error) {
	t.keys["key-00000"] = []byte(value)
	return fleet.Prepare(ctx, t.s, t.config())
}

// publish puts a version into use, and returns the time at which the request was
// sent.
func (t *tree) publish(ctx context.Context, value string) (time.Time, error) {
	r, err := t.prepare(ctx, value)
	if err != nil {
		return time.Time{}, err
	}
	_, st, err := trees.ReadReady(ctx, t.s, t.root)
	if err != nil {
		return time.Time{}, err
	}
	ready := trees.Ready{Version: r.Version, Digest: r.Digest, Previous: r.Previous, Delta: r.Delta}
	began := time.Now()
	_, err = t.s.Set(ctx, trees.ReadyPath(t.root), ready.Encode(), st.Version)
	return began, err
}
