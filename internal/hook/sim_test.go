package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// simTimeout is the session timeout of the simulation, in virtual time.
const simTimeout = 12 * time.Second

// sim is hosts that stand in one election over a ZooKeeper in memory, in virtual
// time. Each has a leader-only hook and one of its own; both are not idempotent. Each
// sees states after a delay of its own, puts them in place after another, and may
// be killed at any step.
type sim struct {
	t *testing.T
	w *memzk.Server

	mu     sync.Mutex // mu guards what follows.
	states []*view.Tree
	killAt int // ledger step at which the process is killed; 0: never
	steps  int
	terms  int
	hooks  map[string]*simHook // the leader's, and one of each host
	fence  int64
}

// simHook is what happened to one hook, in all processes.
type simHook struct {
	running  int
	begun    int
	newest   int64             // state
	runs     []*simRun         // in the order in which they were to be started
	intents  map[string]string // run -> content
	reported map[string]bool   // contents with a run whose end was reported as unknown
}

// simRun is one attempt to start a run.
type simRun struct {
	id, content  string
	written      bool // the ledger took it
	begun, ended bool
}

func newSim(t *testing.T, w *memzk.Server) *sim {
	t.Helper()
	return &sim{t: t, w: w, hooks: map[string]*simHook{}}
}

// hook returns the record of a hook. s.mu is held.
func (s *sim) hook(name string) *simHook {
	if s.hooks[name] == nil {
		s.hooks[name] = &simHook{intents: map[string]string{}, reported: map[string]bool{}}
	}
	return s.hooks[name]
}

// publish makes a state the newest. Its zxid may be that of the state before: a
// hold that ended.
func (s *sim) publish(zxid int64, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := view.TreeOf("web", "/web", map[string]string{"k": value})
	t.Last, t.Generation = zxid, int64(len(s.states)+1)
	s.states = append(s.states, t)
}

// newest returns the newest state, or nil.
func (s *sim) newest() *view.Tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.states) == 0 {
		return nil
	}
	return s.states[len(s.states)-1]
}

// simHost is a host: what its disk keeps over the lives of its processes.
type simHost struct {
	*sim

	id     string
	ledger *memLedger

	disk    sync.Mutex // disk guards what follows.
	placed  map[int64]bool
	refuses time.Time // until then no state can be put in place
}

// simLife is one process of a host.
type simLife struct {
	*simHost

	ctx  context.Context // ends when the process is killed
	kill context.CancelFunc

	snap  sync.Mutex // snap guards what follows.
	view  view.View
	files view.Update // what the files show
	next  chan struct{}
}

// errKilled is what a killed process gets from everything.
var errKilled = errors.New("killed")

// live runs a host, process after process, until ctx ends.
func (h *simHost) live(ctx context.Context, seed uint64) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		life, kill := context.WithCancel(ctx)
		p := &simLife{simHost: h, ctx: life, kill: kill, next: make(chan struct{})}
		p.process(rand.New(rand.NewPCG(seed, n)))
		kill()
		pace.Sleep(ctx, time.Second)
	}
}

// process is one process: a session after the other until it is killed.
func (p *simLife) process(rng *rand.Rand) {
	cand := election.New(election.Config{Name: "e", Path: "/e", ID: p.id, Lead: p.lead})
	var wg sync.WaitGroup
	defer wg.Wait()
	seed := rng.Uint64()
	wg.Go(func() { p.follow(rng) })
	wg.Go(func() { p.apply(rand.New(rand.NewPCG(seed, 1))) })
	wg.Go(func() {
		p.place("", scope{run: func(ctx context.Context, c proc.Command) (proc.Result, error) { return p.exec(ctx, p.id, c) }, newLedger: func(string) ledger {
			return &simLedger{p, p.id, p.ledger}
		}}).run(p.ctx)
	})
	for p.ctx.Err() == nil {
		s, err := session.Dial(p.ctx, session.Config{Servers: []string{p.id + ":2181"}, Timeout: simTimeout, Dial: p.w.Dial})
		if err != nil {
			continue
		}
		_ = cand.Run(p.ctx, s, func(*view.Leader) {})
		if p.ctx.Err() != nil {
			p.w.ExpireSession(s.ID()) // as its end would in time
		}
		_ = s.Close()
	}
}

// change changes what the process knows.
func (p *simLife) change(fn func()) {
	p.snap.Lock()
	defer p.snap.Unlock()
	fn()
	close(p.next)
	p.next = make(chan struct{})
}

// follow shows each state after a delay; states in between may be missed, as over
// a slow connection.
func (p *simLife) follow(rng *rand.Rand) {
	for pace.Sleep(p.ctx, time.Duration(rng.Int64N(int64(2*time.Second)))) {
		if t := p.newest(); t != nil && p.view.Get(onWeb[0]) != view.Update(t) {
			p.change(func() { p.view = p.view.With(t) })
		}
	}
}

// apply puts the newest state that the process knows in place, after a while and
// unless the host refuses it.
func (p *simLife) apply(rng *rand.Rand) {
	for pace.Sleep(p.ctx, time.Duration(rng.Int64N(int64(time.Second)))) {
		p.disk.Lock()
		refused := time.Now().Before(p.refuses)
		p.disk.Unlock()
		p.snap.Lock()
		u, old := p.view.Get(onWeb[0]), p.files
		p.snap.Unlock()
		if refused || u == nil || u == old {
			continue
		}
		p.disk.Lock()
		p.placed[u.(*view.Tree).Generation] = true
		p.disk.Unlock()
		p.change(func() { p.files = u })
	}
}

func (p *simLife) state() State {
	p.snap.Lock()
	defer p.snap.Unlock()
	u := p.view.Get(onWeb[0])
	inPlace := u == p.files
	return State{View: p.view, Complete: u != nil, InPlace: func(view.Source) bool { return inPlace }, Next: p.next}
}

// place makes the hook of the leader, or of the host.
func (p *simLife) place(leader string, s scope) *place {
	name := p.id
	if leader != "" {
		name = "leader"
	}
	e := newEngine(p.state)
	e.Agent, e.Log = p.id, slog.New(unknownHandler{p.sim, name})
	e.Set([]Config{{Name: name, Leader: leader, OnChange: onWeb, Command: argv("hook"), Timeout: time.Hour}}, map[string]string{"e": "/e"})
	return &place{engine: e, election: leader, scope: s}
}

// lead is what Engine.Lead does with a term.
func (p *simLife) lead(ctx context.Context, t election.Term) {
	p.mu.Lock()
	p.terms++
	p.mu.Unlock()
	run := func(ctx context.Context, c proc.Command) (proc.Result, error) {
		leased, stop := t.Session.WithLease(ctx)
		defer stop()
		return p.exec(leased, "leader", c)
	}
	p.place("e", scope{term: t.ID, run: run, newLedger: func(string) ledger {
		return &simLedger{p, "leader", &zkLedger{s: t.Session, guard: t.Guard(), path: "/e-ledger/h"}}
	}}).run(ctx)
	<-ctx.Done()
}

// exec is the command: it works for a while, unless the term or the process
// ends.
func (p *simLife) exec(ctx context.Context, name string, c proc.Command) (proc.Result, error) {
	var ev command.Trigger
	if err := json.Unmarshal(c.Stdin, &ev); err != nil || len(ev.Changes) != 1 {
		return proc.Result{}, fmt.Errorf("standard input %q: %w", c.Stdin, err)
	}
	n, _ := strconv.ParseInt(ev.Changes[0].To, 10, 64)
	p.disk.Lock()
	if !p.placed[n] {
		p.t.Errorf("%s: %s runs its hook for state %d before its files are in place", name, p.id, n)
	}
	p.disk.Unlock()
	p.mu.Lock()
	h := p.hook(name)
	if h.running > 0 || ev.Term < p.fence && name == "leader" {
		p.t.Errorf("%s: %s begins state %d with fence %d beside %d others, last fence %d", name, p.id, n, ev.Term, h.running, p.fence)
	}
	run := h.runs[len(h.runs)-1]
	if want := contentOf(p.states[n-1]); run.content != want || run.begun {
		p.t.Errorf("%s: %s runs state %d, which the ledger does not have", name, p.id, n)
	}
	// Zxids order states. The end of a hold, and a way back, have none that does.
	if n < h.newest && p.states[n-1].Last < p.states[h.newest-1].Last {
		p.t.Errorf("%s: %s runs state %d after state %d", name, p.id, n, h.newest)
	}
	h.newest = n
	run.begun = true
	h.begun++
	h.running++
	if name == "leader" {
		p.fence = ev.Term
	}
	p.mu.Unlock()
	ran := pace.Sleep(ctx, time.Duration(h.begun%7)*500*time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	h.running--
	if run.ended = ran; !ran {
		return proc.Result{}, context.Cause(ctx)
	}
	return proc.Result{}, nil
}

// step is one moment between two actions of a process: it may be killed here.
func (p *simLife) step() error {
	p.mu.Lock()
	p.steps++
	if p.steps == p.killAt {
		p.kill()
	}
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		return errKilled
	}
	return nil
}

// simLedger is a ledger with a step before and after each action.
type simLedger struct {
	p    *simLife
	name string
	ledger
}

func (l *simLedger) load(ctx context.Context) (record, error) {
	if err := l.p.step(); err != nil {
		return record{}, err
	}
	r, err := l.ledger.load(ctx)
	return r, errors.Join(err, l.p.step())
}

func (l *simLedger) store(ctx context.Context, r record) error {
	for _, e := range r.Changes {
		l.p.mu.Lock()
		if h := l.p.hook(l.name); e.State == stateStarted && h.intents[e.Run] == "" {
			h.intents[e.Run] = e.Digest
			h.runs = append(h.runs, &simRun{id: e.Run, content: e.Digest})
		}
		l.p.mu.Unlock()
	}
	if err := l.p.step(); err != nil {
		return err
	}
	err := l.ledger.store(ctx, r)
	l.p.mu.Lock()
	for _, run := range l.p.hook(l.name).runs {
		if e := r.Changes[onWeb[0].String()]; e.Run == run.id && err == nil {
			run.written = true
		}
	}
	l.p.mu.Unlock()
	return errors.Join(err, l.p.step())
}

// unknownHandler notes which runs are reported as unknown.
type unknownHandler struct {
	s    *sim
	name string
}

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
			h := u.s.hook(u.name)
			h.reported[a.Value.String()] = true
			u.s.mu.Unlock()
		}
		return true
	})
	return nil
}

// verdict checks what every history must satisfy: a hook runs once for a content until
// another content comes, a run with an unknown end is reported, and the last content
// had its run.
func (s *sim) verdict(what string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := contentOf(s.states[len(s.states)-1])
	for name, h := range s.hooks {
		for i, r := range h.runs {
			if r.begun && !r.ended && !h.reported[r.id] {
				s.t.Errorf("%s: %s: run %d was begun, did not end, and was not reported", what, name, i)
			}
			if i > 0 && r.begun && h.runs[i-1].begun && h.runs[i-1].content == r.content {
				s.t.Errorf("%s: %s: runs %d and %d are of the same content", what, name, i-1, i)
			}
		}
		if !h.had(last) {
			s.t.Errorf("%s: %s: the last content was lost", what, name)
		}
	}
}

// had reports whether the last run is of the content, and ended or was reported.
// Whether the ledger took an attempt that was cut off is unknown.
func (h *simHook) had(content string) bool {
	for _, r := range slices.Backward(h.runs) {
		if r.content == content && (r.ended || h.reported[r.id]) {
			return true
		}
		if r.written || r.begun {
			return false
		}
	}
	return false
}

// simulate runs hosts while fn runs, and leaves them five quiet minutes.
func simulate(t *testing.T, hosts int, seed uint64, fn func(s *sim, hosts []*simHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		s := newSim(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var list []*simHost
		for i := range hosts {
			h := &simHost{sim: s, id: fmt.Sprintf("h%d", i), ledger: &memLedger{}, placed: map[int64]bool{}}
			list = append(list, h)
			wg.Go(func() { h.live(ctx, seed+uint64(i)) })
		}
		fn(s, list)
		w.ClearFaults()
		time.Sleep(5 * time.Minute)
		s.verdict(fmt.Sprintf("seed %d, killed at step %d", seed, s.killAt))
		cancel()
		wg.Wait()
	})
}

// TestLedger_LeaderKilledAtEachStep: whatever the process had done by then, the
// change is done once or reported as unknown.
func TestLedger_LeaderKilledAtEachStep(t *testing.T) {
	testhelp.InTurn(t, 2)
	for step := 1; step <= 24; step++ {
		simulate(t, 2, 1, func(s *sim, _ []*simHost) {
			s.mu.Lock()
			s.killAt = step
			s.mu.Unlock()
			s.publish(1, "a")
			time.Sleep(time.Minute)
			s.publish(2, "b")
			time.Sleep(time.Minute)
		})
	}
}

// fault does one thing that may go wrong.
func (s *sim) fault(rng *rand.Rand, hosts []*simHost) {
	h := hosts[rng.IntN(len(hosts))]
	addr := h.id + ":2181"
	switch rng.IntN(8) {
	case 0:
		s.w.LoseReply(memzk.AnyOp, 1+rng.IntN(8), rng.IntN(2) == 0)
	case 1:
		s.w.DropConnections(addr)
	case 2:
		s.w.Partition(addr)
	case 3:
		s.w.Heal()
	case 4:
		h.disk.Lock()
		h.refuses = time.Now().Add(time.Duration(rng.Int64N(int64(2 * time.Minute))))
		h.disk.Unlock()
	default:
		s.mu.Lock()
		s.killAt = s.steps + 1 + rng.IntN(12)
		s.mu.Unlock()
	}
}

// next publishes another state: a new content, the same content again, the end of
// a hold, or the way back to a state before.
func (s *sim) next(rng *rand.Rand, zxid *int64) {
	old := s.newest()
	*zxid++
	switch kind := rng.IntN(6); {
	case old == nil || kind < 3:
		s.publish(*zxid, strconv.FormatInt(*zxid, 10))
	case kind == 3: // the same content, under a new zxid
		k, _ := old.Get("k")
		s.publish(*zxid, string(k.Value))
	case kind == 4: // another content, and no new zxid
		s.publish(old.Last, "hold "+strconv.FormatInt(*zxid, 10))
	default:
		s.mu.Lock()
		before := s.states[rng.IntN(len(s.states))]
		s.mu.Unlock()
		k, _ := before.Get("k")
		s.publish(before.Last, string(k.Value))
	}
}

// TestLedger_LeadershipChangesWhileChangesArrive lets the leadership change
// two hundred times, or fifty in a quick run: by network faults, lost replies, and kills.
func TestLedger_LeadershipChangesWhileChangesArrive(t *testing.T) {
	testhelp.InTurn(t, 2)
	changes := 50
	if testhelp.All() {
		changes = 200
	}
	simulate(t, 4, 7, func(s *sim, hosts []*simHost) {
		rng := rand.New(rand.NewPCG(7, 7))
		terms := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.terms
		}
		var zxid int64
		for round := 0; terms() < changes && round < 20*changes; round++ {
			s.next(rng, &zxid)
			s.fault(rng, hosts)
			time.Sleep(time.Duration(rng.Int64N(int64(simTimeout / 2))))
		}
		if n := terms(); n < changes {
			t.Errorf("only %d terms", n)
		}
	})
}

// TestHook_Seeds is many short random lives of a few hosts.
func TestHook_Seeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		simulate(t, 3, seed, func(s *sim, hosts []*simHost) {
			rng := rand.New(rand.NewPCG(seed, 5))
			var zxid int64
			for range 3 + rng.IntN(8) {
				s.next(rng, &zxid)
				if rng.IntN(2) == 0 {
					s.fault(rng, hosts)
				}
				time.Sleep(time.Duration(rng.Int64N(int64(simTimeout))))
			}
		})
	})
}
