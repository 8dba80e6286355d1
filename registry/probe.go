package registry

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Probing of members that the guard holds.
const (
	probeEvery   = 2 * time.Second
	probeTimeout = time.Second
	probeTries   = 3 // failures in a row until a member counts as lost
	probesAtOnce = 16
	witnesses    = 3 // registered members to test the network with
)

// The results of a probe.
const (
	probeSilent  = iota // no answer: the member or the network is down
	probeRefused        // its host refused the connection
	probeAnswered
)

// prober connects to members that have vanished from ZooKeeper. So it distinguishes
// dead members from a registry that lost its data. A member counts as lost after
// several failures in a row. A timeout counts only while another member of the
// group answers; otherwise this host itself may be cut off. All methods but end may
// be called from any goroutine.
type prober struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	found func() // called when more members are lost

	mu      sync.Mutex // guards the fields below
	targets members
	others  members // witnesses
	lost    map[memberKey]bool
	cancel  context.CancelFunc // nil: it does not run
	wg      sync.WaitGroup
}

// watch makes the prober try the held members until ctx ends or no member is held.
func (p *prober) watch(ctx context.Context, used members) {
	var held, others members
	for _, m := range used {
		switch {
		case m.Port == 0:
		case m.Held:
			held = append(held, m)
		case len(others) < witnesses:
			others = append(others, m)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets, p.others = held, others
	// Who is believed to be lost is held no more. When it has registered again, it is tried anew.
	if len(p.lost) > 0 {
		held := p.held()
		maps.DeleteFunc(p.lost, func(k memberKey, _ bool) bool { return !held[k] })
	}
	switch {
	case len(held) == 0:
		p.stop()
	case p.cancel == nil:
		ctx, p.cancel = context.WithCancel(ctx)
		p.wg.Go(func() { p.run(ctx) })
	}
}

// held are the members that are held now. p.mu is held.
func (p *prober) held() map[memberKey]bool {
	keys := make(map[memberKey]bool, len(p.targets))
	for _, m := range p.targets {
		keys[keyOf(m)] = true
	}
	return keys
}

// confirmed returns those of the members that are known to be lost.
func (p *prober) confirmed(list members) members {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(list), func(m *view.Member) bool { return !p.lost[keyOf(m)] })
}

// stop ends the probing. p.mu is held.
func (p *prober) stop() {
	if p.cancel != nil {
		p.cancel()
		p.cancel, p.lost = nil, nil
	}
}

// end stops the prober and waits for it. It can be used again.
func (p *prober) end() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *prober) run(ctx context.Context) {
	failures := map[memberKey]int{}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		p.round(ctx, failures)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *prober) round(ctx context.Context, failures map[memberKey]int) {
	p.mu.Lock()
	all := slices.Concat(p.targets, p.others)
	targets := len(p.targets)
	p.mu.Unlock()
	results := p.tryAll(ctx, all)
	if ctx.Err() != nil {
		return
	}
	heard := slices.ContainsFunc(results, func(r int) bool { return r != probeSilent })
	more := false
	p.mu.Lock()
	held := p.held()
	maps.DeleteFunc(failures, func(k memberKey, _ int) bool { return !held[k] })
	for i, m := range all[:targets] {
		k := keyOf(m)
		switch {
		case !held[k]: // It is back.
		case results[i] == probeAnswered:
			failures[k] = 0
		case results[i] == probeRefused || heard:
			failures[k]++
		}
		if failures[k] >= probeTries && !p.lost[k] && ctx.Err() == nil {
			if p.lost == nil {
				p.lost = map[memberKey]bool{}
			}
			p.lost[k], more = true, true
		}
	}
	p.mu.Unlock()
	if more {
		p.found()
	}
}

func (p *prober) tryAll(ctx context.Context, list members) []int {
	results := make([]int, len(list))
	slots := make(chan struct{}, probesAtOnce)
	var wg sync.WaitGroup
	for i, m := range list {
		slots <- struct{}{}
		wg.Go(func() {
			results[i] = p.try(ctx, m)
			<-slots
		})
	}
	wg.Wait()
	return results
}

func (p *prober) try(ctx context.Context, m *view.Member) int {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", m.Address())
	switch {
	case err == nil:
		_ = conn.Close()
		return probeAnswered
	case errors.Is(err, syscall.ECONNREFUSED):
		return probeRefused
	}
	return probeSilent
}
