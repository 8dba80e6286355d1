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

	mu        sync.Mutex // guards what follows
	decisions map[string]string
	using     map[string]map[string]bool // rollout -> hosts in the middle of a use
}

func newSim(t *testing.T, seed uint64) *sim {
	w := &sim{
		t: t, server: memzk.New(memzk.Options{}), rng: rand.New(rand.NewPCG(seed, 11)),
		decisions: map[string]string{}, using: map[string]map[string]bool{},
	}
	w.next.Store(2)
	ready := config.Ready{Version: 1, Digest: digest}
	if err := w.server.Create(readyPath(root), ready.Encode()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 + w.rng.IntN(4) {
		w.hosts = append(w.hosts, &simHost{w: w, id: fmt.Sprintf("h%d", i), rng: rand.New(rand.NewPCG(seed, uint64(100+i))), dial: w.server.Dial})
	}
	return w
}

func (w *sim) record(path string, into any) bool {
	node, err := w.server.Get(path)
	if err != nil {
		return false
	}
	switch into := into.(type) {
	case *Proposal:
		*into, err = decode[Proposal](path, node.Data)
	case *Decision:
		*into, err = decode[Decision](path, node.Data)
	case *HostRecord:
		*into, err = decode[HostRecord](path, node.Data)
	case *Done:
		*into, err = decode[Done](path, node.Data)
	}
	if err != nil {
		w.t.Errorf("%s: %v", path, err)
	}
	return err == nil
}

// audit looks at the records after each change.
func (w *sim) audit(ctx context.Context) {
	seen, looked := int64(0), map[string]int64{}
	for nap(ctx, 50*time.Millisecond) {
		zxid := w.server.Zxid()
		if zxid == seen {
			continue
		}
		seen = zxid
		names, _ := w.server.Children(rolloutsPath(root))
		for _, name := range names {
			if _, ok := rolloutNumber(name); ok {
				w.auditOne(name, looked)
			}
		}
	}
}

// auditOne looks at one rollout; looked has the zxids of what was looked at.
func (w *sim) auditOne(name string, looked map[string]int64) {
	if hosts, err := w.server.Get(hostsPath(root, name)); err == nil && hosts.Stat.Mzxid != looked[name] {
		looked[name] = hosts.Stat.Mzxid
		var p Proposal
		a, err := decode[Activity](name, hosts.Data)
		if err != nil {
			w.t.Error(err)
		}
		if w.record(rolloutPath(root, name), &p) && len(a.Active) > p.Strategy.Parallel {
			w.t.Errorf("%s: %v are active, K is %d", name, a.Active, p.Strategy.Parallel)
		}
	}
	node, err := w.server.Get(decisionPath(root, name))
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.decisions[name]; ok && before != string(node.Data) || node.Stat.Version != 0 {
		w.t.Errorf("%s: the decision was %s and is %s", name, before, node.Data)
	}
	w.decisions[name] = string(node.Data)
}

// begin checks that a host may use the version of a rollout now.
func (w *sim) begin(id, rollout string, version int64) {
	var p Proposal
	var d Decision
	var own HostRecord
	if !w.record(rolloutPath(root, rollout), &p) || p.Version != version {
		w.t.Errorf("%s uses v%d, %s proposes v%d", id, version, rollout, p.Version)
	}
	if !w.record(decisionPath(root, rollout), &d) || !d.Commit {
		w.t.Errorf("%s uses v%d without a decision for commit", id, version)
	}
	if !w.record(hostsPath(root, rollout)+"/"+id, &own) || own.State != HostStarted {
		w.t.Errorf("%s uses v%d, its record says %q", id, version, own.State)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.using[rollout] == nil {
		w.using[rollout] = map[string]bool{}
	}
	w.using[rollout][id] = true
	if n := len(w.using[rollout]); n > p.Strategy.Parallel {
		w.t.Errorf("%s: %d hosts at once, K is %d", rollout, n, p.Strategy.Parallel)
	}
}

func (w *sim) end(id, rollout string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.using[rollout], id)
}

// shown checks that a host may use a version without a permit.
func (w *sim) shown(id, rollout string, version int64) {
	if rollout == "" {
		return
	}
	var d Done
	var own HostRecord
	done := w.record(donePath(root, rollout), &d) && d.Result == ResultDone
	if !w.server.Exists(rolloutPath(root, rollout)) {
		return // swept: closed long ago
	}
	recorded := w.record(hostsPath(root, rollout)+"/"+id, &own) && own.State != HostSkipped // as if without a record
	if recorded && own.State != HostDone || !recorded && !done {
		w.t.Errorf("%s shows v%d of %s, its record says %q, done: %v", id, version, rollout, own.State, done)
	}
}

// operate proposes and interferes until ctx ends.
func (w *sim) operate(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 5 * time.Second, Dial: w.server.Dial})
		if err != nil {
			return
		}
		for range 1 + rng.IntN(6) {
			do, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20))*time.Second)
			w.act(do, s, rng)
			cancel()
			nap(ctx, time.Duration(rng.IntN(15000))*time.Millisecond)
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
	switch pick := rng.IntN(12); {
	case state.Phase() == PhaseHalted && pick < 4:
		_ = Retry(ctx, s, root, name)
	case state.Phase() == PhaseHalted:
		w.propose(ctx, s, w.strategy(rng), name)
	case state.Phase() == PhasePaused:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionRun})
	case pick == 0:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionPause, By: "ann"})
	case pick == 1:
		_ = SetControl(ctx, s, root, name, Control{Action: ActionAbort, By: "ann"})
	case pick == 2: // past the rollout
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
		w.server.Delay(jute.OpMulti, time.Duration(w.rng.IntN(500))*time.Millisecond)
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
	if name, err := Current(ctx, s, root); err == nil {
		if w.settled(ctx, s, name) == PhaseHalted {
			replace = name
		}
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
		state, err := Read(ctx, s, root, name)
		if err != nil {
			w.t.Error(err)
			return ""
		}
		_, current := Current(ctx, s, root)
		switch phase := state.Phase(); phase {
		case PhaseHalted:
			return phase
		case PhaseDone, PhaseAborted:
			if errors.Is(current, ErrNoRollout) {
				return phase
			}
		case PhasePaused:
			_ = SetControl(ctx, s, root, name, Control{Action: ActionRun})
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
