package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
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

	w     *sim
	id    string
	at    string        // its machine; of two with one id they differ
	joins time.Duration // after which it is there for the first time
	splay time.Duration
	// dial is the network of its processes; touched by their goroutine alone.
	dial  func(context.Context, string, string) (net.Conn, error)
	born  int    // processes so far, likewise
	leave func() // ends the host; of a twin

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	inUse   int64
	process *mortal          // of the present process
	session *session.Session // likewise
	hung    chan struct{}    // closed when the host answers again; nil: it does
}

func (h *simHost) addr() string { return h.at + ":2181" }

// addrs are two servers, as far as faults are concerned.
func (h *simHost) addrs() []string { return []string{h.addr(), other(h.addr())} }

// other is the other server of who uses the one.
func other(addr string) string {
	if host, second := strings.CutSuffix(addr, ":2182"); second {
		return host + ":2181"
	}
	return strings.TrimSuffix(addr, ":2181") + ":2182"
}

// lives is one process after another. Some stay away for long, and some come back
// on a new machine with the old id.
func (h *simHost) lives(ctx context.Context) {
	for h.rest(ctx, h.joins); ctx.Err() == nil; {
		life, end := context.WithCancel(ctx)
		m := &mortal{server: h.w.server, killed: end}
		h.mu.Lock()
		h.process = m
		h.mu.Unlock()
		h.dial = m.dial
		h.live(life)
		end()
		most := []int{3000, 3000, 20000, 20000, 90000}[h.chance(5)]
		if h.w.absent {
			most = 90000
		}
		h.rest(ctx, time.Duration(h.chance(most))*time.Millisecond)
		if h.chance(4) == 0 {
			h.put(0)
		}
	}
}

// rest is a nap that ends when the faults are over.
func (h *simHost) rest(ctx context.Context, d time.Duration) {
	nap, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-nap.Done():
	case <-h.w.calmed:
	}
}

// crash ends the present process: in good order, or by a loss of power, so that its
// session lives on until it expires.
func (h *simHost) crash(hard bool) {
	h.mu.Lock()
	m := h.process
	h.mu.Unlock()
	switch {
	case m == nil:
	case hard:
		m.kill()
	default:
		m.killed()
	}
}

// gone ends a machine for good.
func (h *simHost) gone() {
	h.leave()
	h.crash(true)
}

// expire ends the present session.
func (h *simHost) expire() {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	if s != nil {
		h.w.server.ExpireSession(s.ID())
	}
}

// hang makes the host's loop stand still, with its session alive, or go on.
func (h *simHost) hang(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hung != nil {
		close(h.hung)
		h.hung = nil
	}
	if on {
		h.hung = make(chan struct{})
	}
}

// answers is the maintenance of the host, when it answers.
func (h *simHost) answers(ctx context.Context) func() (string, <-chan struct{}) {
	return func() (string, <-chan struct{}) {
		h.mu.Lock()
		hung := h.hung
		h.mu.Unlock()
		if hung != nil {
			select {
			case <-hung:
			case <-ctx.Done():
			}
		}
		return h.maintenance()
	}
}

// live is one process: one session after another, with one watcher, one
// participant, one subscription.
func (h *simHost) live(ctx context.Context) {
	h.born++
	watcher := config.NewWatcher(config.Config{Name: "site", Path: root, Layout: config.LayoutVersioned, Splay: h.splay})
	life := &simLife{simHost: h, ended: ctx.Done()}
	subscriber := NewSubscriber(SubscriberConfig{Path: root, ID: h.id})
	life.subscriber = subscriber
	p := New(Config{
		Root: root, Agent: h.id, Host: life, Life: fmt.Sprintf("%s-%d", h.at, h.born), Maintenance: h.answers(ctx), Owned: subscriber.Owned, InUse: h.version(),
		Tree: func(ctx context.Context, s *session.Session, v Version) (*view.Tree, error) {
			if v.Digest == "" {
				return watcher.ReadVersion(ctx, s, v.Number)
			}
			return watcher.ReadProposed(ctx, s, v.Number, v.Digest, v.Delta)
		},
	})
	p.window = func(hosts int) time.Duration { return cmp.Or(h.w.window, VoteWindow(hosts)) }
	p.keep = h.w.keep
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: h.addrs(), Timeout: 6 * time.Second, Dial: h.dial})
		if err != nil {
			return
		}
		h.mu.Lock()
		h.session = s
		h.mu.Unlock()
		h.connected(ctx, s, watcher, subscriber, p)
		_ = s.Close()
	}
}

func (h *simHost) connected(ctx context.Context, s *session.Session, watcher *config.Watcher, subscriber *Subscriber, p *Participant) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = subscriber.Run(ctx, s) })
	wg.Go(func() {
		_ = watcher.Run(ctx, s, func(u view.Update) {
			if tree, ok := u.(*view.Tree); ok {
				p.Offer(tree)
			}
		})
	})
	if err := p.Run(ctx, s); err != nil && !errors.Is(err, ErrStopping) && ctx.Err() == nil && s.Context().Err() == nil {
		h.w.t.Errorf("%s: %v", h.id, err)
	}
	cancel()
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
	subscriber *Subscriber
	ended      <-chan struct{}
}

func (h *simLife) wait(ctx context.Context, d time.Duration) bool {
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
	if h.chance(60) == 0 && !h.w.quiet.Load() {
		return errors.New("refused")
	}
	return nil
}

// Plan implements Planner.
func (h *simLife) Plan(ctx context.Context, tree *view.Tree, _ bool) ([]FileChange, error) {
	return []FileChange{{Path: "/etc/site", Added: 1}}, h.Vote(ctx, tree)
}

// Show implements Host.
func (h *simLife) Show(tree *view.Tree) {
	h.w.book.shown(h.id, tree.Generation, tree.Digest)
	h.w.reads(h.id, tree)
	h.put(tree.Generation)
	h.subscriber.Report(tree.Generation, StateOK, nil)
}

// Use implements Host.
func (h *simLife) Use(ctx context.Context, tree, from *view.Tree) error {
	rollout := h.w.begin(h.id, tree.Generation)
	defer h.w.end(h.id, rollout)
	h.w.reads(h.id, tree)
	h.put(tree.Generation)
	if !h.wait(ctx, time.Duration(h.chance(8000))*time.Millisecond) {
		return ErrStopping
	}
	if h.chance(6) == 0 && !h.w.quiet.Load() { // the version kills it
		h.crash(h.chance(2) == 0)
		<-h.ended
		return ErrStopping
	}
	if h.chance(h.w.failing) == 0 && !h.w.quiet.Load() {
		if !h.wait(ctx, time.Duration(h.chance(1000))*time.Millisecond) {
			return ErrStopping
		}
		h.put(from.Generation)
		h.subscriber.Report(from.Generation, StateFailed, errors.New("failed"))
		return errors.New("failed")
	}
	h.subscriber.Report(tree.Generation, StateOK, nil)
	return nil
}

// Back implements Host.
func (h *simLife) Back(ctx context.Context, tree *view.Tree) error {
	if !h.wait(ctx, time.Duration(h.chance(1000))*time.Millisecond) {
		return ErrStopping
	}
	h.put(tree.Generation)
	h.subscriber.Report(tree.Generation, StateFailed, errors.New("given up"))
	return nil
}
