package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// simTimeout is the session timeout of the simulation, in virtual time.
const simTimeout = 12 * time.Second

// sim is hosts that stand in one election over a ZooKeeper in memory, in
// virtual time, with a leader-only hook that is not idempotent. Each host sees
// changes after a delay of its own, and may be killed at any step.
type sim struct {
	t *testing.T
	w *memzk.Server

	mu       sync.Mutex // mu guards what follows.
	change   int64      // newest
	killAt   int        // ledger step at which the leader is killed; 0: never
	steps    int
	terms    int
	begun    map[int64]int    // change -> how often its command began
	ended    map[int64]int    // change -> how often it ran to its end
	intent   map[string]int64 // run -> change that was to be started
	reported map[int64]bool   // changes whose end was reported as unknown
	running  int
	fence    int64
}

func newSim(t *testing.T, w *memzk.Server) *sim {
	t.Helper()
	return &sim{
		t: t, w: w, begun: map[int64]int{}, ended: map[int64]int{}, intent: map[string]int64{}, reported: map[int64]bool{},
	}
}

// simHost is one life of one host's process.
type simHost struct {
	*sim

	id   string
	ctx  context.Context // ends when the process is killed
	kill context.CancelFunc
	cand *election.Candidate

	snap sync.Mutex // snap guards what follows.
	view view.View
	next chan struct{}
}

// errKilled is what a killed process gets from everything.
var errKilled = errors.New("killed")

// live runs a host, process after process, until ctx ends.
func (s *sim) live(ctx context.Context, id string, seed uint64) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		life, kill := context.WithCancel(ctx)
		h := &simHost{sim: s, id: id, ctx: life, kill: kill, next: make(chan struct{})}
		h.process(rand.New(rand.NewPCG(seed, n)))
		kill()
		pace.Sleep(ctx, time.Second)
	}
}

// process is one process: a session after the other until it is killed.
func (h *simHost) process(rng *rand.Rand) {
	h.cand = election.New(election.Config{Name: "e", Path: "/e", ID: h.id, Keep: true, Lead: h.lead})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { h.follow(rng) })
	for h.ctx.Err() == nil {
		s, err := session.Dial(h.ctx, session.Config{Servers: []string{h.id + ":2181"}, Timeout: simTimeout, Dial: h.w.Dial})
		if err != nil {
			continue
		}
		_ = h.cand.Run(h.ctx, s, nil)
		if h.ctx.Err() != nil {
			h.w.ExpireSession(s.ID()) // as its end would in time
		}
		_ = s.Close()
	}
}

// follow shows the host each state of the tree after a delay; states in
// between may be missed, as over a slow connection.
func (h *simHost) follow(rng *rand.Rand) {
	for pace.Sleep(h.ctx, time.Duration(rng.Int64N(int64(2*time.Second)))) {
		h.mu.Lock()
		z := h.change
		h.mu.Unlock()
		h.snap.Lock()
		if old := h.view.Get(onWeb[0]); z > 0 && (old == nil || old.Zxid() != z) {
			h.view = h.view.With(tree(z))
			close(h.next)
			h.next = make(chan struct{})
		}
		h.snap.Unlock()
	}
}

func (h *simHost) state() State {
	h.snap.Lock()
	defer h.snap.Unlock()
	return State{View: h.view, Complete: h.view.Get(onWeb[0]) != nil, InPlace: func(view.Source) bool { return true }, Next: h.next}
}

// lead is what Engine.Lead does with a term.
func (h *simHost) lead(ctx context.Context, t election.Term) {
	h.mu.Lock()
	h.terms++
	h.mu.Unlock()
	e := newEngine(h.state)
	e.Agent, e.Log = h.id, slog.New(unknownHandler{h.sim})
	e.Set([]Config{{Name: "h", Leader: "e", OnChange: onWeb, Command: argv("hook"), Timeout: time.Hour}}, nil)
	p := &place{engine: e, election: "e", scope: scope{term: t.ID, run: h.exec, newLedger: func(string) ledger {
		return &simLedger{h, &zkLedger{s: t.Session, guard: t.Guard(), path: "/e-ledger/h"}}
	}}}
	p.run(ctx)
	<-ctx.Done()
}

// exec is the command: it works for a while, unless the term or the process
// ends.
func (h *simHost) exec(ctx context.Context, c proc.Command) (proc.Result, error) {
	var ev command.Trigger
	if err := json.Unmarshal(c.Stdin, &ev); err != nil || len(ev.Changes) != 1 {
		return proc.Result{}, fmt.Errorf("standard input %q: %w", c.Stdin, err)
	}
	z, _ := strconv.ParseInt(ev.Changes[0].To, 10, 64)
	h.mu.Lock()
	if h.running > 0 || ev.Term < h.fence {
		h.t.Errorf("%s begins change %d with fence %d beside %d others, last fence %d", h.id, z, ev.Term, h.running, h.fence)
	}
	h.begun[z]++
	h.running++
	h.fence = ev.Term
	h.mu.Unlock()
	ran := pace.Sleep(ctx, 500*time.Millisecond)
	h.mu.Lock()
	h.running--
	if ran {
		h.ended[z]++
	}
	h.mu.Unlock()
	if !ran {
		return proc.Result{}, context.Cause(ctx)
	}
	return proc.Result{}, nil
}

// step is one moment between two actions of a leader: its process may be
// killed here.
func (h *simHost) step() error {
	h.mu.Lock()
	h.steps++
	if h.steps == h.killAt {
		h.kill()
	}
	h.mu.Unlock()
	if h.ctx.Err() != nil {
		return errKilled
	}
	return nil
}

// simLedger is the ledger in ZooKeeper with a step before and after each
// action.
type simLedger struct {
	h *simHost
	*zkLedger
}

func (l *simLedger) load(ctx context.Context) (record, error) {
	if err := l.h.step(); err != nil {
		return record{}, err
	}
	r, err := l.zkLedger.load(ctx)
	return r, errors.Join(err, l.h.step())
}

func (l *simLedger) store(ctx context.Context, r record) error {
	for _, e := range r.Changes {
		l.h.mu.Lock()
		l.h.intent[e.Run] = e.Zxid
		l.h.mu.Unlock()
	}
	if err := l.h.step(); err != nil {
		return err
	}
	err := l.zkLedger.store(ctx, r)
	return errors.Join(err, l.h.step())
}

// unknownHandler notes which changes are reported as unknown.
type unknownHandler struct{ s *sim }

func (unknownHandler) Enabled(context.Context, slog.Level) bool { return true }
func (u unknownHandler) WithAttrs([]slog.Attr) slog.Handler     { return u }
func (u unknownHandler) WithGroup(string) slog.Handler          { return u }

func (u unknownHandler) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "unknown") {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "run" {
			u.s.mu.Lock()
			u.s.reported[u.s.intent[a.Value.String()]] = true
			u.s.mu.Unlock()
		}
		return true
	})
	return nil
}

// verdict checks what every history must satisfy.
func (s *sim) verdict(what string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for z, n := range s.begun {
		if n > 1 {
			s.t.Errorf("%s: change %d was run %d times", what, z, n)
		}
		if s.ended[z] == 0 && !s.reported[z] {
			s.t.Errorf("%s: change %d was begun, did not end, and was not reported", what, z)
		}
	}
	if s.ended[s.change] == 0 && !s.reported[s.change] {
		s.t.Errorf("%s: the last change %d was lost", what, s.change)
	}
}

func (s *sim) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change++
}

// simulate runs hosts while fn runs, and leaves them five quiet minutes.
func simulate(t *testing.T, hosts int, seed uint64, fn func(s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		s := newSim(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range hosts {
			wg.Go(func() { s.live(ctx, fmt.Sprintf("h%d", i), seed+uint64(i)) })
		}
		fn(s)
		w.ClearFaults()
		time.Sleep(5 * time.Minute)
		s.verdict(fmt.Sprintf("seed %d, killed at step %d", seed, s.killAt))
		cancel()
		wg.Wait()
	})
}

// TestLedger_LeaderKilledAtEachStep: whatever the leader had done by then, the
// change is done once or reported as unknown.
func TestLedger_LeaderKilledAtEachStep(t *testing.T) {
	for step := 1; step <= 12; step++ {
		simulate(t, 2, 1, func(s *sim) {
			s.mu.Lock()
			s.killAt = step
			s.mu.Unlock()
			s.publish()
			time.Sleep(time.Minute)
			s.publish()
			time.Sleep(time.Minute)
		})
	}
}

// TestLedger_LeadershipChangesWhileChangesArrive lets the leadership change
// two hundred times: by network faults, lost replies, and kills.
func TestLedger_LeadershipChangesWhileChangesArrive(t *testing.T) {
	const hosts, changes = 4, 200
	simulate(t, hosts, 7, func(s *sim) {
		rng := rand.New(rand.NewPCG(7, 7))
		terms := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.terms
		}
		for round := 0; terms() < changes && round < 20*changes; round++ {
			s.publish()
			addr := fmt.Sprintf("h%d:2181", rng.IntN(hosts))
			switch rng.IntN(6) {
			case 0:
				s.w.LoseReply(memzk.AnyOp, 1+rng.IntN(8), rng.IntN(2) == 0)
			case 1:
				s.w.DropConnections(addr)
			case 2:
				s.w.Partition(addr)
			case 3:
				s.w.Heal()
			default:
				s.mu.Lock()
				s.killAt = s.steps + 1 + rng.IntN(6)
				s.mu.Unlock()
			}
			time.Sleep(time.Duration(rng.Int64N(int64(simTimeout / 2))))
		}
		if n := terms(); n < changes {
			t.Errorf("only %d terms", n)
		}
	})
}
