package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// fleetKeys is the size of the versioned tree that all hosts of a fleet follow.
const fleetKeys = 100

// hostsOf are hosts in this process: each has a session, and follows one versioned
// tree as an agent does.
type hostsOf struct {
	meter meter // of all together
	s     []*session.Session
	news  chan int64 // a host has this generation
	stop  func()
}

// fleetOfHosts compares the cost of a fleet with the model, and its time with the
// simulation. The simulation uses the server's speed that was measured with the
// first size.
func fleetOfHosts(ctx context.Context, e *env) error {
	rate := 0.0
	for _, n := range pick(e, []int{20}, []int{1000, 5000}) {
		if err := e.fleetOf(ctx, n, &rate); err != nil {
			return fmt.Errorf("%d hosts: %w", n, err)
		}
	}
	return nil
}

// smallTree publishes the tree that the fleet follows.
func (e *env) smallTree(ctx context.Context) (*tree, error) {
	root, err := e.root(ctx)
	if err != nil {
		return nil, err
	}
	t := &tree{s: e.writer, root: root, keys: map[string][]byte{}}
	for i := range fleetKeys {
		t.keys[fmt.Sprintf("key-%05d", i)] = fmt.Appendf(nil, "value-%d", i)
	}
	_, err = fleet.Publish(ctx, e.writer, t.config())
	return t, err
}

func (e *env) fleetOf(ctx context.Context, n int, rate *float64) error {
	t, err := e.smallTree(ctx)
	if err != nil {
		return err
	}
	before, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	empty := heap()
	h, err := e.startHosts(ctx, t.root, n)
	if err != nil {
		return err
	}
	defer h.stop()
	each := (heap() - empty) / float64(n)
	held, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	e.add(compare("fleet: watches held", n, "watches", held.watches-before.watches, float64(n), 1, "as the model says"))
	e.add(Row{Case: "fleet: heap of a host", Size: n, Unit: "bytes", Ours: each, Note: fmt.Sprintf("session and tree of %d keys", fleetKeys)})
	if err := e.fleetFollows(ctx, t, h, n, rate); err != nil {
		return err
	}
	return e.fleetReconnects(ctx, h, n, *rate)
}

// maxFloors is the largest fleet that has a floor beside it. With more hosts, twice
// as many connections are too many for one process and a small server.
const maxFloors = 1000

// fleetFollows publishes versions, in turns with a floor whose hosts read one znode.
func (e *env) fleetFollows(ctx context.Context, t *tree, h *hostsOf, n int, rate *float64) error {
	floorTurn, stop, err := e.fleetFloor(ctx, n)
	if err != nil {
		return err
	}
	defer stop()
	var ours, floor samples
	var ourCost, floorCost cost
	was := h.meter.now()
	turns := pick(e, 2, 5)
	for i := range turns {
		took, used, err := e.costOf(ctx, func() (time.Time, error) { return t.publish(ctx, strconv.Itoa(i)) }, func() error { return h.await(ctx, int64(2+i)) })
		if err != nil {
			return fmt.Errorf("version %d: %w", 2+i, err)
		}
		ours, ourCost = append(ours, took), ourCost.plus(used)
		if n > maxFloors {
			continue
		}
		if took, used, err = floorTurn(i); err != nil {
			return fmt.Errorf("floor's turn %d: %w", i, err)
		}
		floor, floorCost = append(floor, took), floorCost.plus(used)
	}
	used := h.meter.now().since(was)
	model := Fleet{Hosts: n, Servers: 1, Trees: 1, Rate: 12000}.Costs()[0]
	e.add(compare("fleet: requests, one version", n, "requests", per(used.requests, turns), model.Requests, 1, "as the model says"))
	e.add(Row{Case: "fleet: bytes a host, one version", Size: n, Unit: "bytes", Ours: per(used.sent+used.received, n*turns), Note: fmt.Sprintf("of %d keys one changed", fleetKeys)})
	hosts := float64(n * turns)
	e.add(compare("fleet: server's processor a host", n, "ms", ms(ourCost.server)/hosts, ms(floorCost.server)/hosts, 0, "one version; floor: one read"))
	e.add(compare("fleet: server's packets a host", n, "packets", ourCost.packets/hosts, floorCost.packets/hosts, 0, "mntr, both ways, pings included"))
	if *rate == 0 {
		*rate = model.Requests / (ours.median() / 1000)
	}
	sim := measuredSim(n, *rate).Publish()
	note := fmt.Sprintf("simulated at %.0f requests a second: %.0f ms", *rate, 1000*sim.Seconds)
	if len(floor) == 0 {
		e.add(told("fleet: until the last host has it", n, ours, 0, note))
		return nil
	}
	e.add(compareSamples("fleet: until the last host has it", n, ours, floor, 0, note))
	return nil
}

// fleetFloor starts the floor, unless the fleet is too large for one. It returns
// what lets it follow one change, and what ends it.
func (e *env) fleetFloor(ctx context.Context, n int) (func(i int) (time.Duration, cost, error), func(), error) {
	if n > maxFloors {
		return nil, func() {}, nil
	}
	var m meter
	reads := make(chan struct{}, 2*n)
	path, err := e.root(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop, err := e.floorHosts(ctx, &m, path, n, func(int, []byte) error { reads <- struct{}{}; return nil })
	if err != nil {
		return nil, nil, err
	}
	all := func() error {
		for range n {
			if _, err := await(ctx, reads); err != nil {
				return err
			}
		}
		return nil
	}
	if err := all(); err != nil {
		stop()
		return nil, nil, fmt.Errorf("floor's first value: %w", err)
	}
	return func(i int) (time.Duration, cost, error) {
		return e.costOf(ctx, func() (time.Time, error) {
			began := time.Now()
			_, err := e.writer.Set(ctx, path, fmt.Appendf(nil, "turn-%d", i), -1)
			return began, err
		}, all)
	}, stop, nil
}

// measuredSim is this process's fleet with one server that answers so many requests
// a second.
func measuredSim(n int, rate float64) Sim {
	return Sim{
		Fleet:  Fleet{Hosts: n, Servers: 1, Trees: 1, Rate: rate},
		Writes: rate, Bandwidth: 100e6, Watches: 300e3, Events: 4 * rate, Trip: 0.001, Timeout: 60, Seed: 1,
	}
}

// costOf writes and waits until all hosts have the change. It returns the time
// since the committing request, and the cost.
func (e *env) costOf(ctx context.Context, write func() (time.Time, error), all func() error) (time.Duration, cost, error) {
	before, err := e.costNow(ctx)
	if err != nil {
		return 0, cost{}, err
	}
	began, err := write()
	if err == nil {
		err = all()
	}
	took := time.Since(began)
	if err != nil {
		return 0, cost{}, err
	}
	after, err := e.costNow(ctx)
	return took, after.minus(before), err
}

// fleetReconnects cuts every connection at once.
func (e *env) fleetReconnects(ctx context.Context, h *hostsOf, n int, rate float64) error {
	conns := make([]uint64, n)
	for i, s := range h.s {
		conns[i] = s.Connection()
	}
	open := h.meter.cut()
	was, began := h.meter.now(), time.Now()
	open()
	for i, s := range h.s {
		if _, err := reconnected(ctx, s, conns[i]); err != nil {
			return err
		}
	}
	took := time.Since(began)
	if err := e.writer.Sync(ctx, "/"); err != nil {
		return err
	}
	// A handshake is no request of the meter, and two of the model's.
	e.add(compare("fleet: requests, all connections lost", n, "requests", float64(h.meter.now().since(was).requests), float64(n), 1, "one setWatches each"))
	e.add(Row{Case: "fleet: until all are connected", Size: n, Unit: "ms", Ours: ms(took), Note: fmt.Sprintf("simulated: %.0f ms", 1000*measuredSim(n, rate).Reconnect("").Seconds)})
	return nil
}

// startHosts starts hosts and waits until all have the first version.
func (e *env) startHosts(ctx context.Context, root string, n int) (*hostsOf, error) {
	h := &hostsOf{news: make(chan int64, n)}
	run, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	h.stop = func() {
		cancel()
		wg.Wait()
		var closing sync.WaitGroup
		for part := range parts {
			closing.Go(func() {
				for i := part; i < len(h.s); i += parts {
					_ = h.s[i].Close()
				}
			})
		}
		closing.Wait()
	}
	for range n {
		s, err := e.dial(ctx, &h.meter)
		if err != nil {
			h.stop()
			return nil, err
		}
		h.s = append(h.s, s)
		wg.Go(func() {
			_ = config.NewWatcher(config.Config{Name: "app", Path: root}).Run(run, s, func(u view.Update) {
				if t, ok := u.(*view.Tree); ok {
					h.news <- t.Generation
				}
			})
		})
	}
	if err := h.await(ctx, 1); err != nil {
		h.stop()
		return nil, err
	}
	return h, nil
}

// await waits until every host has the generation.
func (h *hostsOf) await(ctx context.Context, generation int64) error {
	for range h.s {
		got, err := await(ctx, h.news)
		if err != nil {
			return err
		}
		if got != generation {
			return fmt.Errorf("a host has generation %d, want %d", got, generation)
		}
	}
	return nil
}
