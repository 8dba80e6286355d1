package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
)

// sim is one simulation of TestSeeds.
type sim struct {
	t      *testing.T
	server *memzk.Server
	rng    *rand.Rand // of the test's goroutine
	hosts  []*simHost
	wg     sync.WaitGroup
	quiet  atomic.Bool  // the faults are over: hosts neither fail nor crash
	next   atomic.Int64 // version to be proposed next

	book *book

	mu    sync.Mutex                 // guards what follows
	using map[string]map[string]bool // rollout -> hosts in the middle of a use
}

// newWorldOf returns a simulation without hosts.
func newWorldOf(t *testing.T, rng *rand.Rand) *sim {
	w := &sim{t: t, rng: rng, book: newBook(t), using: map[string]map[string]bool{}}
	w.server = memzk.New(memzk.Options{Committed: w.book.committed})
	return w
}

func newSim(t *testing.T, seed uint64) *sim {
	w := newWorldOf(t, rand.New(rand.NewPCG(seed, 11)))
	w.next.Store(2)
	ready := config.Ready{Version: 1, Digest: digest}
	if err := w.server.Create(readyPath(root), ready.Encode()); err != nil {
		t.Fatal(err)
	}
	for i := range 2 + w.rng.IntN(5) {
		w.hosts = append(w.hosts, &simHost{w: w, id: fmt.Sprintf("h%d", i), rng: rand.New(rand.NewPCG(seed, uint64(100+i))), dial: w.server.Dial})
	}
	return w
}

// begin checks that a host may use the version of a rollout now.
func (w *sim) begin(id, rollout string, version int64) {
	k := w.book.may(id, rollout, version)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.using[rollout] == nil {
		w.using[rollout] = map[string]bool{}
	}
	w.using[rollout][id] = true
	if n := len(w.using[rollout]); n > k {
		w.t.Errorf("%s: %d hosts at once, K is %d", rollout, n, k)
	}
}

func (w *sim) end(id, rollout string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.using[rollout], id)
}

// operate proposes and interferes until ctx ends.
func (w *sim) operate(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 5 * time.Second, Dial: w.server.Dial})
		if err != nil {
			return
		}
		for range 1 + rng.IntN(6) {
			if rng.IntN(2) == 0 {
				w.book.awaitMove(ctx)
			}
			do, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20))*time.Second)
			w.act(do, s, rng)
			cancel()
			nap(ctx, time.Duration(rng.IntN(10000))*time.Millisecond)
		}
		_ = s.Close()
	}
}

// act does one thing that an operator does.
func (w *sim) act(ctx context.Context, s *session.Session, rng *rand.Rand) {
	name, err := Current(ctx, s, root)
	if errors.Is(err, ErrNoRollout) {
		w.propose(ctx, s, w.strategy(rng), "")
		return
	}
	if err != nil {
		return
	}
	state, err := Read(ctx, s, root, name)
	if err != nil {
		return
	}
	switch pick := rng.IntN(9); {
	case state.Phase() == PhaseHalted && pick < 4:
		_ = Retry(ctx, s, root, name)
	case state.Phase() == PhaseHalted:
		w.propose(ctx, s, w.strategy(rng), name)
	case state.Phase() == PhasePaused:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionRun})
	case pick == 0:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionPause, By: "ann"})
	case pick <= 2:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionAbort, By: "ann"})
	case pick == 3: // past the rollout
		if _, stat, err := s.Get(ctx, readyPath(root)); err == nil {
			_, _ = s.Set(ctx, readyPath(root), config.Ready{Version: w.next.Add(1), Digest: digest}.Encode(), stat.Version)
		}
	}
}

func (w *sim) strategy(rng *rand.Rand) Strategy {
	s := Strategy{
		Parallel: 1 + rng.IntN(3), Canary: rng.IntN(3), Bake: Duration(time.Duration(rng.IntN(10)) * time.Second),
		Pause: Duration(time.Duration(rng.IntN(3)) * time.Second), MaxFailures: 1 + rng.IntN(2),
		VoteTimeout: Duration(time.Duration(10+rng.IntN(20)) * time.Second), Grace: Duration(30 * time.Second),
		Absent: []string{AbsentAbort, AbsentSkip}[rng.IntN(2)],
	}
	if rng.IntN(4) == 0 {
		s.Order = []string{w.hosts[rng.IntN(len(w.hosts))].id, "nobody"}
	}
	return s
}

func (w *sim) propose(ctx context.Context, s *session.Session, strategy Strategy, replace string) string {
	name, err := Propose(ctx, s, Request{Root: root, Version: w.next.Add(1), Digest: digest, Strategy: strategy, Replace: replace, Expect: -1})
	if err != nil {
		return ""
	}
	return name
}

// fault injects one fault, or ends all.
func (w *sim) fault() {
	host := w.hosts[w.rng.IntN(len(w.hosts))]
	addr := []string{host.addr(), "desk:2181"}[w.rng.IntN(2)]
	switch w.rng.IntN(13) {
	case 0:
		w.server.DropConnections()
	case 1:
		if ids := w.server.SessionIDs(); len(ids) > 0 {
			w.server.ExpireSession(ids[w.rng.IntN(len(ids))])
		}
	case 2, 3, 4:
		ops := []int32{jute.OpMulti, jute.OpMulti, jute.OpCreate, jute.OpGetData, jute.OpExists, memzk.AnyOp}
		w.server.LoseReply(ops[w.rng.IntN(len(ops))], 1+w.rng.IntN(5), w.rng.IntN(2) == 0)
	case 5:
		w.slow()
	case 6:
		w.server.Partition(addr)
	case 7:
		w.server.Restart()
	case 8:
		w.server.Lag(addr)
	case 9:
		host.crash()
	case 10:
		host.maintain([]string{"", "disk"}[w.rng.IntN(2)])
	default:
		w.server.ClearFaults()
	}
}

// slow lets time pass between the requests of everybody, so that much can
// happen between a look and what follows from it.
func (w *sim) slow() {
	op, most := jute.OpMulti, 500
	if w.rng.IntN(3) > 0 {
		op, most = memzk.AnyOp, 200
	}
	w.server.Delay(op, time.Duration(1+w.rng.IntN(most))*time.Millisecond)
}

// calm ends all faults.
func (w *sim) calm() {
	w.server.ClearFaults()
	w.server.Start()
	for _, h := range w.hosts {
		w.server.CatchUp(h.addr())
		h.maintain("")
	}
	w.server.CatchUp("desk:2181")
	w.quiet.Store(true)
}

// finish brings what is open to its end.
func (w *sim) finish(ctx context.Context) {
	s, err := session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 10 * time.Second, Dial: w.server.Dial})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer s.Close()
	replace := ""
	if name, err := w.book.openNow(); err == nil && w.settled(ctx, s, name) == PhaseHalted {
		replace = name
	}
	name, err := Propose(ctx, s, Request{
		Root: root, Version: w.next.Add(1), Digest: digest, Replace: replace, Expect: -1, Strategy: Strategy{Parallel: len(w.hosts), Absent: AbsentSkip},
	})
	if err != nil {
		w.t.Errorf("propose at the end: %v", err)
		return
	}
	if phase := w.settled(ctx, s, name); phase != PhaseDone {
		state, _ := Read(ctx, s, root, name)
		w.t.Errorf("%s ends %s: %v", name, phase, state.Err())
		return
	}
	if err := w.book.allClosed(); err != nil {
		w.t.Error(err)
	}
	want := w.next.Load()
	for _, h := range w.hosts {
		for i := 0; h.version() != want; i++ {
			if !nap(ctx, time.Second) || i > 120 {
				w.t.Errorf("%s uses v%d, want v%d", h.id, h.version(), want)
				break
			}
		}
	}
}

// settled waits until the rollout will not go on by itself.
func (w *sim) settled(ctx context.Context, s *session.Session, name string) string {
	for range 1200 {
		switch phase := w.book.phase(name); phase {
		case "":
		case PhasePaused:
			_ = SetControl(ctx, s, root, name, Control{Action: ActionRun})
		default:
			return phase
		}
		nap(ctx, time.Second)
	}
	var lines []string
	for path, node := range w.server.Tree() {
		if strings.Contains(path, "/rollouts") {
			lines = append(lines, path+" "+string(node.Data))
		}
	}
	w.t.Errorf("%s is open for ever:\n%s", name, strings.Join(lines, "\n"))
	return ""
}
