package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// sim is one simulation of TestSeeds.
type sim struct {
	t      *testing.T
	server *memzk.Server
	rng    *rand.Rand // of the test's goroutine
	hosts  []*simHost
	twins  []*simHost // second machines with the id of a host
	wg     sync.WaitGroup
	quiet  atomic.Bool   // the faults are over: hosts neither fail nor crash
	calmed chan struct{} // closed then
	next   atomic.Int64  // content to be proposed next
	trap   ambush

	failing int           // one use of so many fails
	window  time.Duration // of the votes; 0: that of so few hosts
	keep    int           // records of a closed rollout that stay
	absent  bool          // hosts stay away for long, and rollouts go on without them

	book *book

	mu     sync.Mutex                 // guards what follows
	using  map[string]map[string]bool // rollout -> hosts in the middle of a use
	words  map[string]string          // digest -> content
	stock  []Result                   // versions that were written and not proposed yet
	skewed time.Duration              // of ZooKeeper's clock
}

// newWorldOf returns a simulation without hosts.
func newWorldOf(t *testing.T, rng *rand.Rand) *sim {
	w := &sim{t: t, rng: rng, failing: 12, keep: keepRecords, book: newBook(t), calmed: make(chan struct{}), using: map[string]map[string]bool{}, words: map[string]string{}}
	w.book.busy = w.busy
	w.server = memzk.New(memzk.Options{Committed: w.book.committed})
	return w
}

func newSim(t *testing.T, seed uint64) *sim {
	w := newWorldOf(t, rand.New(rand.NewPCG(seed, 11)))
	if w.rng.IntN(3) == 0 {
		w.failing = 3
	}
	sort := rand.New(rand.NewPCG(seed, 13)) // of fleet
	if sort.IntN(3) == 0 {
		w.window = time.Duration(sort.IntN(20)) * time.Second
	}
	if sort.IntN(2) == 0 {
		w.keep = 0
	}
	hosts := 2 + w.rng.IntN(5)
	if sort.IntN(4) == 0 {
		w.absent, hosts = true, hosts+2
	}
	for i := range hosts {
		h := w.host(fmt.Sprintf("h%d", i), "", seed)
		if i > 0 && w.rng.IntN(3) == 0 {
			h.joins = time.Duration(w.rng.IntN(60000)) * time.Millisecond
		}
		w.hosts = append(w.hosts, h)
	}
	if w.rng.IntN(4) == 0 {
		twin := w.host(w.hosts[w.rng.IntN(len(w.hosts))].id, "-twin", seed)
		twin.joins = time.Duration(w.rng.IntN(30000)) * time.Millisecond
		w.twins = append(w.twins, twin)
		w.book.lag()
		w.book.twin = twin.id
	}
	return w
}

// host is one machine.
func (w *sim) host(id, which string, seed uint64) *simHost {
	h := &simHost{w: w, id: id, at: id + which, rng: rand.New(rand.NewPCG(seed, uint64(100+len(w.hosts)+len(which)))), dial: w.server.Dial}
	if w.rng.IntN(3) == 0 {
		h.splay = time.Duration(w.rng.IntN(4000)) * time.Millisecond
	}
	return h
}

// dial is a session of an operator.
func (w *sim) dial(ctx context.Context) (*session.Session, error) {
	return session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 5 * time.Second, Dial: w.server.Dial})
}

// first publishes what the hosts begin with.
func (w *sim) first(ctx context.Context) {
	s, err := w.dial(ctx)
	if err == nil {
		_, err = Publish(ctx, s, w.content())
		for range w.rng.IntN(3) {
			w.prepare(ctx, s)
		}
		_ = s.Close()
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// content is a new content.
func (w *sim) content() PublishConfig {
	word := fmt.Sprint(w.next.Add(1))
	return PublishConfig{
		Path: root, Layout: config.LayoutVersioned, Author: "ann", Host: "desk",
		Keys: map[string][]byte{"word": []byte(word), "same": []byte("same")},
	}
}

// begin checks that a host may use the version now.
func (w *sim) begin(id string, version int64) string {
	rollout, k := w.book.may(id, version)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.using[rollout] == nil {
		w.using[rollout] = map[string]bool{}
	}
	w.using[rollout][id] = true
	if n := len(w.using[rollout]); n > k {
		w.t.Errorf("%s: %d hosts at once, K is %d", rollout, n, k)
	}
	return rollout
}

// busy is the rollout that a host is in the middle of using a version of, and that
// is another than the given one; empty: none.
func (w *sim) busy(id, but string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, ids := range w.using {
		if ids[id] && name != but {
			return name
		}
	}
	return ""
}

// wrote notes what a version contains.
func (w *sim) wrote(cfg PublishConfig, r Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words[r.Digest] = string(cfg.Keys["word"])
}

// prepare writes a version that is used later, or never.
func (w *sim) prepare(ctx context.Context, s *session.Session) {
	if r, ok := w.write(ctx, s, false); ok {
		w.mu.Lock()
		w.stock = append(w.stock, r)
		w.mu.Unlock()
	}
}

func (w *sim) write(ctx context.Context, s *session.Session, dry bool) (Result, bool) {
	cfg := w.content()
	cfg.Dry = dry
	r, err := Prepare(ctx, s, cfg)
	if err != nil {
		return r, false
	}
	w.wrote(cfg, r)
	return r, true
}

// version is one that nobody has used, often one that was written before others. Then
// no lock is needed, which somebody may hold.
func (w *sim) version(ctx context.Context, s *session.Session, dry bool) (Result, bool) {
	w.mu.Lock()
	if n := len(w.stock); n > 0 && !dry {
		r := w.stock[n-1]
		w.stock = w.stock[:n-1]
		r.Previous = 0 // it was made for another one
		w.mu.Unlock()
		return r, true
	}
	w.mu.Unlock()
	return w.write(ctx, s, dry)
}

// reads checks that a host has the content that the digest stands for.
func (w *sim) reads(id string, tree *view.Tree) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key, _ := tree.Keys().Get("word")
	if want := w.words[tree.Digest]; want != "" && want != string(key.Value) {
		w.t.Errorf("%s uses v%d with %q, its digest is that of %q", id, tree.Generation, key.Value, want)
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
		s, err := w.dial(ctx)
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
	switch rng.IntN(28) {
	case 5, 6, 7, 8:
		w.prepare(ctx, s)
		return
	case 0:
		_, _ = GC(ctx, s, root, 1, nil)
		return
	case 1:
		_ = Freeze(ctx, s, root, "ann", "sales day")
		return
	case 2:
		w.foreign(ctx, s, rng)
		return
	case 3:
		w.publish(ctx, s, rng, rng.IntN(2) == 0)
		return
	case 4:
		w.rollback(ctx, s, rng)
		return
	case 9, 10:
		w.vanish(ctx, s, rng)
		return
	}
	_, _ = Unfreeze(ctx, s, root, "bob")
	w.interfere(ctx, s, rng)
}

// publish writes a version and uses it at once, in an emergency past an open
// rollout; now and then with the content that is in use.
func (w *sim) publish(ctx context.Context, s *session.Session, rng *rand.Rand, emergency bool) {
	cfg := w.content()
	if tree, err := config.Read(ctx, s, root); err == nil && rng.IntN(3) == 0 {
		key, _ := tree.Keys().Get("word")
		cfg.Keys["word"] = key.Value
	}
	cfg.Emergency = emergency
	before := w.book.openNow()
	r, err := Publish(ctx, s, cfg)
	w.published(before, cfg, r, err)
}

// rollback is an emergency, too: to the version before, or to the one in use.
func (w *sim) rollback(ctx context.Context, s *session.Session, rng *rand.Rand) {
	cfg, to := w.content(), int64(0)
	cfg.Emergency = true
	if ready, _, err := trees.ReadReady(ctx, s, root); err == nil && rng.IntN(2) == 0 {
		to = ready.Version
	}
	before := w.book.openNow()
	r, err := Rollback(ctx, s, cfg, to)
	cfg.Keys = nil
	w.published(before, cfg, r, err)
}

// vanish deletes the config, and brings it back from the trash or publishes another.
func (w *sim) vanish(ctx context.Context, s *session.Session, rng *rand.Rand) {
	_, _ = Delete(ctx, s, root, "ann", "a test")
	nap(ctx, time.Duration(rng.IntN(5000))*time.Millisecond)
	if rng.IntN(3) == 0 {
		w.publish(ctx, s, rng, false)
		return
	}
	_, _ = Restore(ctx, s, root, "bob")
}

// published checks that an emergency has closed what was open.
func (w *sim) published(before string, cfg PublishConfig, r Result, err error) {
	if err != nil {
		return
	}
	if cfg.Keys != nil {
		w.wrote(cfg, r)
	}
	if cfg.Emergency && before != "" && w.book.phase(before) == "" {
		w.t.Errorf("%s is open behind an emergency publish: %+v", before, r)
	}
}

// interfere proposes, or does to what is open what an operator may.
func (w *sim) interfere(ctx context.Context, s *session.Session, rng *rand.Rand) {
	ann := Order{By: "ann"}
	name, err := Current(ctx, s, root)
	if errors.Is(err, ErrNoRollout) {
		dry := rng.IntN(6) == 0
		if name, _ := w.propose(ctx, s, w.strategy(rng), "", dry); dry && name != "" && rng.IntN(3) > 0 {
			w.awaitAnswers(ctx, s, name)
		}
		return
	}
	if err != nil {
		return
	}
	state, err := Head(ctx, s, root, name)
	if err != nil {
		return
	}
	switch pick := rng.IntN(9); {
	case state.Proposal.Dry && pick < 3:
		_ = EndDry(ctx, s, root, name, "ann")
	case state.Gate.State == GateVoting && !state.Gate.Paused && rng.IntN(5) > 0: // most come to a decision
	case state.Proposal.Dry:
		w.propose(ctx, s, w.strategy(rng), "", false)
	case state.Phase() == PhaseHalted && pick < 4:
		_ = Retry(ctx, s, root, name, ann)
	case state.Phase() == PhaseHalted, state.Phase() == PhaseRefused:
		w.propose(ctx, s, w.strategy(rng), name, false)
	case state.Phase() == PhasePaused:
		_ = Resume(ctx, s, root, name, ann)
	case pick == 0:
		_ = Pause(ctx, s, root, name, ann)
	case pick <= 2:
		_ = Abort(ctx, s, root, name, ann)
	case pick == 3:
		if Abort(ctx, s, root, name, ann) == nil { // a rollback
			w.propose(ctx, s, Strategy{Parallel: len(w.hosts)}, name, false)
		}
	}
}

// foreign sets ready as another tool would, past all rules, to a version that
// exists, sometimes with a difference that is wrong.
func (w *sim) foreign(ctx context.Context, s *session.Session, rng *rand.Rand) {
	ready, stat, err := trees.ReadReady(ctx, s, root)
	if err != nil {
		return
	}
	r, ok := w.version(ctx, s, false)
	if !ok {
		return
	}
	now := trees.Ready{Version: r.Version, Digest: r.Digest, Previous: foreignMark}
	if rng.IntN(2) == 0 {
		now.Delta = &trees.Delta{From: ready.Digest, Set: map[string][]byte{"word": []byte("stale")}}
	}
	_, _ = s.Multi(ctx, session.CheckOp(trees.VersionPath(root, r.Version), -1), session.SetOp(trees.ReadyPath(root), now.Encode(), stat.Version))
}

// awaitAnswers is the end of a dry run as its operator brings it about.
func (w *sim) awaitAnswers(ctx context.Context, s *session.Session, name string) {
	patience, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	_ = Watch(patience, s, root, name, func(state *State) bool { return state.Open() })
	if EndDry(ctx, s, root, name, "ann") != nil {
		return
	}
	if _, ok, err := s.Exists(ctx, rolloutPath(root, name)); ok && err == nil {
		w.t.Errorf("%s is over and still there", name)
	}
}

func (w *sim) strategy(rng *rand.Rand) Strategy {
	s := Strategy{
		Parallel: 1 + rng.IntN(3), Canary: rng.IntN(3), Bake: Duration(time.Duration(rng.IntN(20)) * time.Second),
		Pause: Duration(time.Duration(rng.IntN(3)) * time.Second), MaxFailures: 1 + rng.IntN(2),
		VoteTimeout: Duration(time.Duration(10+rng.IntN(20)) * time.Second), Grace: Duration(time.Duration(8+rng.IntN(20)) * time.Second),
		Absent: []string{AbsentAbort, AbsentSkip, AbsentSkip}[rng.IntN(3)],
	}
	if rng.IntN(4) == 0 {
		s.Order = []string{w.hosts[rng.IntN(len(w.hosts))].id}
	}
	if rng.IntN(4) == 0 {
		s.Bake += Duration(40 * time.Second)
	}
	if w.absent {
		s.Parallel, s.MaxFailures, s.Grace, s.Absent = 2, 3, Duration(8*time.Second), AbsentSkip
	}
	return s
}

func (w *sim) propose(ctx context.Context, s *session.Session, strategy Strategy, replace string, dry bool) (string, int64) {
	r, ok := w.version(ctx, s, dry)
	if !ok {
		return "", 0
	}
	name, err := Propose(ctx, s, Request{
		Root: root, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Strategy: strategy, Replace: replace, Base: r.Previous, Dry: dry,
	})
	if err != nil {
		return "", 0
	}
	return name, r.Version
}

// fault injects one fault, or ends all.
func (w *sim) fault() {
	host := w.hosts[w.rng.IntN(len(w.hosts))]
	addr := append(host.addrs(), "desk:2181")[w.rng.IntN(3)]
	switch w.rng.IntN(19) {
	case 0:
		w.server.DropConnections()
	case 1:
		if ids := w.server.SessionIDs(); len(ids) > 0 {
			w.server.ExpireSession(ids[w.rng.IntN(len(ids))])
		}
	case 2, 3, 4:
		ops := []int32{jute.OpMulti, jute.OpMulti, jute.OpMulti, jute.OpGetData, jute.OpExists, memzk.AnyOp}
		w.server.LoseReply(ops[w.rng.IntN(len(ops))], 1+w.rng.IntN(5), w.rng.IntN(2) == 0)
	case 5:
		w.slow()
	case 6:
		w.server.Partition(addr)
	case 7:
		w.server.Restart()
	case 8:
		w.book.lag()
		w.server.Lag(addr)
	case 9, 10:
		host.crash(w.rng.IntN(2) == 0)
	case 11:
		host.maintain([]string{"", "disk"}[w.rng.IntN(2)])
	case 12:
		host.hang(w.rng.IntN(2) == 0)
	case 13:
		w.skew(time.Duration(w.rng.IntN(120)-60) * time.Second)
	case 14:
		host.expire()
	case 18:
		if id := w.book.bakedBy(); id != "" {
			for _, h := range w.hosts {
				if h.id == id {
					h.crash(w.rng.IntN(2) == 0)
				}
			}
		}
	case 15:
		for _, twin := range w.twins {
			twin.crash(true)
		}
	default:
		w.skew(0)
		w.server.ClearFaults()
		w.server.Hold(w.hold)
	}
}

// skew makes ZooKeeper's clock jump.
func (w *sim) skew(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.skewed != by {
		w.book.jump()
		w.server.Skew(by)
		w.skewed = by
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
	w.trap.end()
	w.skew(0)
	w.server.ClearFaults()
	w.server.Start()
	for _, twin := range w.twins {
		twin.gone()
	}
	for _, h := range w.hosts {
		w.server.CatchUp(h.addrs()...)
		h.maintain("")
		h.hang(false)
	}
	w.server.CatchUp("desk:2181")
	w.quiet.Store(true)
	close(w.calmed)
}

// finish brings what is open to its end, and looks that every host uses what it
// is to use: first as things are, then after one more rollout.
func (w *sim) finish(ctx context.Context) {
	s, err := session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 10 * time.Second, Dial: w.server.Dial})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer s.Close()
	if _, err = Unfreeze(ctx, s, root, "bob"); err != nil {
		w.t.Error(err)
	}
	if _, err = Restore(ctx, s, root, "bob"); err != nil && !errors.Is(err, ErrNotDeleted) && !errors.Is(err, ErrConflict) {
		w.t.Error(err)
	}
	open := w.book.openNow()
	if open != "" {
		if w.settled(ctx, s, open) == PhaseHalted && w.rng.IntN(2) == 0 {
			w.retried(ctx, s, open)
		}
	}
	w.allUse(ctx, func(id string) int64 {
		for _, h := range w.hosts {
			if h.id == id && id == w.book.twin {
				return h.version() // its records may be those of the other machine
			}
		}
		return w.book.wanted(id)
	})
	name, version := "", int64(0)
	for i := 0; name == "" && i < 120; i++ { // The hosts may all be about to come back.
		name, version = w.propose(ctx, s, Strategy{Parallel: len(w.hosts), Absent: AbsentSkip}, w.book.openNow(), false)
		nap(ctx, time.Second)
	}
	if name == "" {
		w.t.Errorf("propose at the end fails")
		return
	}
	if phase := w.settled(ctx, s, name); phase != PhaseDone {
		w.t.Errorf("%s ends %s\n%s", name, phase, w.book.notify())
		return
	}
	w.allUse(ctx, func(string) int64 { return version })
	nap(ctx, 2*time.Second)
	list, err := Subscribers(ctx, s, root)
	if err != nil || len(list) != len(w.hosts) {
		w.t.Errorf("%d subscribe, %v", len(list), err)
	}
	for _, sub := range list {
		if sub.Version != version || sub.State != StateOK {
			w.t.Errorf("subscribed: %+v, v%d is in use", sub, version)
		}
	}
}

// retried lets a halted rollout go on, when nothing fails any more: hosts that have
// come meanwhile take part, and all are done.
func (w *sim) retried(ctx context.Context, s *session.Session, name string) {
	late := w.host("late", "", 1)
	w.hosts = append(w.hosts, late)
	w.wg.Go(func() { late.lives(ctx) })
	w.hosts[0].crash(w.rng.IntN(2) == 0)
	nap(ctx, 20*time.Second)
	err := Retry(ctx, s, root, name, Order{By: "ann"})
	if errors.Is(err, ErrNoRollout) {
		return // it was superseded
	}
	if err != nil {
		w.t.Errorf("retry: %v", err)
		return
	}
	if phase := w.settled(ctx, s, name); phase != PhaseDone {
		w.t.Errorf("%s is tried again, and ends %s\n%s", name, phase, w.book.notify())
		return
	}
	for _, h := range w.hosts {
		if state := w.book.record(name, h.id).State; state != HostDone {
			w.t.Errorf("%s is tried again and done, %s is %q\n%s", name, h.id, state, w.book.notify())
		}
	}
}

// allUse waits until every host uses its version.
func (w *sim) allUse(ctx context.Context, want func(id string) int64) {
	for _, h := range w.hosts {
		for i := 0; h.version() != want(h.id); i++ {
			if !nap(ctx, time.Second) || i > 120 {
				w.t.Errorf("%s uses v%d, want v%d\n%s", h.id, h.version(), want(h.id), w.book.notify())
				return
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
			_ = Resume(ctx, s, root, name, Order{By: "bob"})
		default:
			nap(ctx, 10*time.Second) // a turn that is under way comes to its end
			return phase
		}
		nap(ctx, time.Second)
	}
	w.t.Errorf("%s is open for ever:\n%s", name, w.book.notify())
	return ""
}
