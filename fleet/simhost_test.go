package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// simHost is one host of a simulation. What it uses is on its "disk" and
// outlives its process.
type simHost struct {
	upkeep

	w  *sim
	id string
	// dial is the network of its processes; touched by their goroutine alone.
	dial func(context.Context, string, string) (net.Conn, error)
	born int // processes so far, likewise

	mu    sync.Mutex // guards what follows
	rng   *rand.Rand
	inUse int64
	kill  context.CancelFunc
}

func (h *simHost) addr() string { return h.id + ":2181" }

// lives is one process after another.
func (h *simHost) lives(ctx context.Context) {
	for ctx.Err() == nil {
		process, kill := context.WithCancel(ctx)
		h.mu.Lock()
		h.kill = kill
		h.mu.Unlock()
		h.live(process)
		kill()
		if !h.w.quiet.Load() {
			nap(ctx, time.Duration(h.chance(20000))*time.Millisecond)
		}
	}
}

// crash ends the present process.
func (h *simHost) crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kill != nil {
		h.kill()
	}
}

// live is one process: one session after another.
func (h *simHost) live(ctx context.Context) {
	h.born++
	life := fmt.Sprintf("%s-%d", h.id, h.born)
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{h.addr()}, Timeout: 6 * time.Second, Dial: h.dial})
		if err != nil {
			return
		}
		h.connected(ctx, s, life)
		_ = s.Close()
	}
}

func (h *simHost) connected(ctx context.Context, s *session.Session, life string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := New(Config{Root: root, Agent: h.id, Host: &simLife{h, ctx.Done()}, Tree: h.tree, Life: life, Maintenance: h.maintenance})
	subscriber := config.NewSubscriber(config.SubscriberConfig{Path: root, ID: h.id})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = subscriber.Run(ctx, s) })
	wg.Go(func() { h.follow(ctx, s, p) })
	if err := p.Run(ctx, s); err != nil && ctx.Err() == nil && s.Context().Err() == nil {
		h.w.t.Errorf("%s: %v", h.id, err)
	}
	cancel()
}

// follow offers what ready names, as the watcher of package config does.
func (h *simHost) follow(ctx context.Context, s *session.Session, p *Participant) {
	newest := int64(0)
	for ctx.Err() == nil && s.Context().Err() == nil {
		data, _, watch, err := s.GetW(ctx, readyPath(root))
		if err != nil {
			if !nap(ctx, 100*time.Millisecond) {
				return
			}
			continue
		}
		if ready, _, err := config.ParseReady(data); err == nil && ready.Version != newest {
			newest = ready.Version
			p.Offer(treeOf(ready))
		}
		err = wait(ctx, s, watch)
		watch.Stop()
		if err != nil {
			return
		}
	}
}

func (h *simHost) tree(_ context.Context, _ *session.Session, version int64) (*view.Tree, error) {
	return treeOf(config.Ready{Version: version}), nil
}

// chance is a random number below n.
func (h *simHost) chance(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(n)
}

func (h *simHost) version() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inUse
}

func (h *simHost) put(version int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inUse = version
}

// simLife is the host in one process. It implements Host.
type simLife struct {
	*simHost
	ended <-chan struct{}
}

func (h *simLife) wait(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-h.ended:
	case <-ctx.Done():
	}
	return false
}

// Vote implements Host.
func (h *simLife) Vote(ctx context.Context, _ *view.Tree) error {
	h.wait(ctx, time.Duration(h.chance(2000))*time.Millisecond)
	if h.chance(30) == 0 && !h.w.quiet.Load() {
		return errors.New("refused")
	}
	return nil
}

// Show implements Host.
func (h *simLife) Show(tree *view.Tree) {
	h.w.book.shown(h.id, tree.Rollout, tree.Generation)
	h.put(tree.Generation)
}

// Use implements Host.
func (h *simLife) Use(ctx context.Context, tree *view.Tree) error {
	h.w.begin(h.id, tree.Rollout, tree.Generation)
	defer h.w.end(h.id, tree.Rollout)
	before := h.version()
	h.put(tree.Generation)
	if !h.wait(ctx, time.Duration(h.chance(8000))*time.Millisecond) {
		return ErrStopping
	}
	if h.chance(8) == 0 && !h.w.quiet.Load() {
		h.put(before)
		return errors.New("failed")
	}
	return nil
}
