package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
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

// fleetOfHosts compares what a fleet of hosts costs with what the model says.
func fleetOfHosts(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{20}, []int{1000, 5000}) {
		if err := fleetOf(ctx, e, n); err != nil {
			return fmt.Errorf("%d hosts: %w", n, err)
		}
	}
	return nil
}

func fleetOf(ctx context.Context, e *env, n int) error {
	root, err := e.root(ctx)
	if err != nil {
		return err
	}
	values := map[string][]byte{}
	for i := range fleetKeys {
		values[fmt.Sprintf("key-%03d", i)] = fmt.Appendf(nil, "value-%d", i)
	}
	publish := func() error {
		_, err := config.Publish(ctx, e.writer, config.PublishConfig{Path: root, Layout: config.LayoutVersioned, Keys: values, Author: "bench", Host: "bench"})
		return err
	}
	if err := publish(); err != nil {
		return err
	}
	before, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	h, err := e.startHosts(ctx, root, n)
	if err != nil {
		return err
	}
	defer h.stop()
	held, err := e.serverCost(ctx)
	if err != nil {
		return err
	}
	model := Fleet{Hosts: n, Servers: 1, Trees: 1, Rate: 12000}.Costs()
	e.add(compare("fleet: watches held", n, "watches", held.watches-before.watches, float64(n), 1, "as the model says"))
	was, began := h.meter.now(), time.Now()
	values["key-000"] = []byte("changed")
	if err := publish(); err != nil {
		return err
	}
	if err := h.await(ctx, 2); err != nil {
		return err
	}
	used := h.meter.now().since(was)
	e.add(compare("fleet: requests, one version", n, "requests", float64(used.requests), model[0].Requests, 1, "as the model says"))
	e.add(Row{Case: "fleet: bytes a host, one version", Size: n, Unit: "bytes", Ours: float64(used.sent+used.received) / float64(n), Note: "of 100 keys one changed"})
	e.add(Row{Case: "fleet: until the last host has it", Size: n, Unit: "ms", Ours: ms(time.Since(began)), Note: fmt.Sprintf("the model says %.0f", 1000*model[0].Seconds)})
	return e.fleetReconnects(ctx, h, n)
}

// fleetReconnects cuts every connection at once.
func (e *env) fleetReconnects(ctx context.Context, h *hostsOf, n int) error {
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
	e.add(Row{Case: "fleet: until all are connected", Size: n, Unit: "ms", Ours: ms(took), Note: "back-off of 50 ms to 3 s included"})
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
