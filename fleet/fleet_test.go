package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

const (
	root   = "/config/site"
	digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// world is a fleet of simulated hosts around one server in memory.
type world struct {
	t      *testing.T
	server *memzk.Server
	desk   *session.Session // the operator's
	hosts  map[string]*simpleHost
	next   *nextVersion // of the hosts that are upgraded; may be nil

	mu     sync.Mutex // guards what follows
	active map[string]bool
	peak   int
	window time.Duration // of the votes, in place of VoteWindow; 0: that
	baking *BakeCheck    // of every host
	halts  map[string]halt
}

// bakeCheck is the check that a coordinator of this world runs.
func (w *world) bakeCheck() *BakeCheck {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.baking
}

// voteWindow is that of a fleet of more hosts than a test has.
func (w *world) voteWindow(hosts int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.window, VoteWindow(hosts))
}

func (w *world) spreadVotes(window time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.window = window
}

// simpleHost is one simulated agent. What is on its "disk" outlives its process.
type simpleHost struct {
	upkeep

	w       *world
	id      string
	cancel  context.CancelFunc
	stopped chan struct{}
	process <-chan struct{} // closed when the process stops

	mu        sync.Mutex // guards what follows
	inUse     int64
	history   []int64
	refuse    map[int64]string // version -> why the vote is abort
	unchecked error            // of votes that are none for abort
	fail      map[int64]string // version -> why its use fails
	unread    map[int64]error  // version -> why it cannot be read
	more      int              // files beside the one that a version changes
	took      time.Duration    // how long a use takes
	hold      chan struct{}    // a use waits for it when not nil
	kills     int64            // the version that kills the process
	dead      bool             // it did
}

func newWorld(t *testing.T, ids ...string) *world {
	w := &world{t: t, server: memzk.New(memzk.Options{}), hosts: map[string]*simpleHost{}, active: map[string]bool{}}
	w.desk = w.dial("desk")
	ctx := t.Context()
	if err := w.desk.CreateParents(ctx, trees.ReadyPath(root)); err != nil {
		t.Fatal(err)
	}
	ready := trees.Ready{Version: 1, Digest: digest}
	if _, _, err := w.desk.Create(ctx, trees.ReadyPath(root), ready.Encode(), session.Persistent); err != nil {
		t.Fatal(err)
	}
	w.version(1)
	for _, id := range ids {
		w.hosts[id] = &simpleHost{w: w, id: id, refuse: map[int64]string{}, fail: map[int64]string{}, took: time.Second}
		w.hosts[id].start()
	}
	for _, id := range ids {
		w.await("everybody to use version 1", func() bool { return w.hosts[id].version() == 1 })
	}
	return w
}

// version makes a version exist.
func (w *world) version(n int64) {
	_ = w.server.Create(trees.VersionPath(root, n), nil) // it may be there
}

func (w *world) dial(id string) *session.Session {
	w.t.Helper()
	dial := w.server.Dial
	if w.next != nil && w.next.hosts[id] {
		dial = w.next.dial
	}
	s, err := session.Dial(w.t.Context(), session.Config{
		Servers: []string{"memzk:2181"}, Timeout: 10 * time.Second, Dial: dial, Identity: id,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// close ends everything, as a bubble demands.
func (w *world) close() {
	for _, h := range w.hosts {
		h.stop()
	}
	_ = w.desk.Close()
	w.server.Close()
}

// await waits in virtual time.
func (w *world) await(what string, ok func() bool, why ...func() string) {
	w.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond) // virtual time: this waits for the bubble
	}
	for _, explain := range why {
		w.t.Log(explain())
	}
	w.t.Fatalf("ten minutes passed waiting for %s", what)
}

func (w *world) propose(version int64, strategy Strategy) string {
	w.t.Helper()
	w.version(version)
	name, err := Propose(w.t.Context(), w.desk, Request{Root: root, Version: version, Digest: digest, Strategy: strategy, Who: "ann"})
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

func (w *world) awaitPhase(name string, phases ...string) *State {
	w.t.Helper()
	var state *State
	w.await(name+" to be "+strings.Join(phases, " or "), func() bool {
		var err error
		if state, err = Head(w.t.Context(), w.desk, root, name); err == nil && slices.Contains(phases, state.Phase()) {
			state, err = Read(w.t.Context(), w.desk, root, name) // with the hosts, which take most of the time
		}
		if err != nil {
			w.t.Fatal(err)
		}
		return slices.Contains(phases, state.Phase())
	}, func() string { return fmt.Sprintf("it is %s: %s", state.Phase(), encode(state)) })
	return state
}

// start starts the host's process: session, subscriber, participant.
func (h *simpleHost) start() {
	ctx, cancel := context.WithCancel(h.w.t.Context())
	h.cancel, h.stopped, h.process = cancel, make(chan struct{}), ctx.Done()
	s := h.w.dial(h.id)
	go func() {
		defer close(h.stopped)
		defer s.Close()
		h.run(ctx, s)
	}()
}

func (h *simpleHost) run(ctx context.Context, s *session.Session) {
	path := SubscriptionPath(root, h.id)
	if err := s.CreateParents(ctx, path); err != nil {
		return
	}
	if _, _, err := s.Create(ctx, path, nil, session.Ephemeral); err != nil && !errors.Is(err, session.ErrNodeExists) {
		return
	}
	p := New(Config{Root: root, Agent: h.id, Host: h, Tree: h.tree, Maintenance: h.maintenance, BakeCheck: h.w.bakeCheck, InUse: h.version(), Halted: h.halted})
	p.window = h.w.voteWindow
	var wg sync.WaitGroup
	wg.Go(func() { h.follow(ctx, s, p) })
	if err := p.Run(ctx, s); err != nil && ctx.Err() == nil {
		h.w.t.Errorf("%s: %v", h.id, err)
	}
	wg.Wait()
}

// follow offers what ready names, as the watcher of package config does.
func (h *simpleHost) follow(ctx context.Context, s *session.Session, p *Participant) {
	for ctx.Err() == nil {
		data, stat, watch, err := s.GetW(ctx, trees.ReadyPath(root))
		if err != nil {
			return
		}
		ready, _, err := trees.ParseReady(data)
		if err != nil {
			return
		}
		p.Offer(treeOf(ready, stat.Mzxid))
		if err := watch.Wait(ctx); err != nil {
			return
		}
	}
}

func treeOf(r trees.Ready, zxid int64) *view.Tree {
	return view.NewTree(view.Tree{Name: "site", Path: root, Layout: "versioned", Generation: r.Version, Previous: r.Previous, Rollout: r.Rollout, Last: zxid}, nil)
}

func (h *simpleHost) tree(_ context.Context, _ *session.Session, v Version) (*view.Tree, error) {
	if err := h.unread[v.Number]; err != nil {
		return nil, err
	}
	return treeOf(trees.Ready{Version: v.Number}, 0), nil
}

// stop ends the process in good order.
func (h *simpleHost) stop() {
	if h.cancel != nil {
		h.cancel()
		<-h.stopped
		h.cancel = nil
	}
}

func (h *simpleHost) version() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inUse
}

// versions are those that were in use, in order.
func (h *simpleHost) versions() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.history)
}

// died reports once that a version has killed the process.
func (h *simpleHost) died() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	died := h.dead
	h.dead = false
	return died
}

func (h *simpleHost) put(version int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inUse != version {
		h.inUse = version
		h.history = append(h.history, version)
	}
}

// Vote implements Host.
func (h *simpleHost) Vote(_ context.Context, tree *view.Tree) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why := h.refuse[tree.Generation]; why != "" {
		return errors.New(why)
	}
	return h.unchecked
}

// Show implements Host.
func (h *simpleHost) Show(tree *view.Tree) { h.put(tree.Generation) }

// Use implements Host; the world sees who is at it.
func (h *simpleHost) Use(ctx context.Context, tree, from *view.Tree) error {
	h.w.enter(h.id)
	defer h.w.leave(h.id)
	h.put(tree.Generation)
	h.mu.Lock()
	took, hold, why := h.took, h.hold, h.fail[tree.Generation]
	if h.kills == tree.Generation {
		h.dead = true
		h.mu.Unlock()
		h.cancel()
		return ErrStopping
	}
	h.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-h.process:
			return ErrStopping
		case <-ctx.Done():
			return ErrStopping
		}
	}
	if !nap(ctx, took) {
		return ErrStopping
	}
	if why != "" {
		h.put(from.Generation)
		return errors.New(why)
	}
	return nil
}

// Back implements Host.
func (h *simpleHost) Back(_ context.Context, tree *view.Tree) error {
	h.put(tree.Generation)
	return nil
}

func (w *world) enter(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active[id] = true
	w.peak = max(w.peak, len(w.active))
}

func (w *world) leave(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.active, id)
}

// begun is how many hosts have been started.
func begun(s *State) int {
	c := s.Counts()
	return c.Started + c.Done + c.Failed
}

func ids(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("web-%02d", i))
	}
	return out
}

// inBubble runs a test against a fleet in virtual time.
func inBubble(t *testing.T, n int, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, ids(n)...)
		defer w.close()
		test(t, w)
	})
}

func TestRollout_GoodVersionReachesEverybodyKAtATime(t *testing.T) {
	inBubble(t, 20, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 3, Canary: 1, Bake: Duration(time.Minute), Pause: Duration(2 * time.Second)})
		state := w.awaitPhase(name, PhaseDone)
		for id, h := range w.hosts {
			if h.version() != 2 {
				t.Errorf("%s uses version %d", id, h.version())
			}
		}
		if w.peak > 3 {
			t.Errorf("%d hosts were active at once, K is 3", w.peak)
		}
		if state.Gate.Counts.Called != 20 || state.Gate.Counts.Done != 20 {
			t.Errorf("closed %+v", state.Gate)
		}
		w.await("current to be gone", func() bool {
			_, err := Current(t.Context(), w.desk, root)
			return errors.Is(err, ErrNoRollout)
		})
	})
}

func TestRollout_OneHostRefusesAndNobodyChanges(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, w *world) {
		w.hosts["web-05"].refuse[2] = "nginx: [emerg] unknown directive"
		name := w.propose(2, Strategy{Parallel: 8})
		state := w.awaitPhase(name, PhaseAborted)
		if err := state.Err(); !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "web-05: nginx: [emerg] unknown directive") {
			t.Errorf("got %v", err)
		}
		for id, h := range w.hosts {
			if !slices.Equal(h.history, []int64{1}) {
				t.Errorf("%s used versions %v", id, h.history)
			}
		}
	})
}

func TestRollout_HaltsAtTheFirstFailureAndRollsBack(t *testing.T) {
	inBubble(t, 10, func(t *testing.T, w *world) {
		for _, id := range ids(10)[4:] {
			w.hosts[id].fail[2] = "reload: exit status 1"
		}
		name := w.propose(2, Strategy{Parallel: 1})
		state := w.awaitPhase(name, PhaseHalted)
		if !errors.Is(state.Err(), ErrHalted) || !strings.Contains(state.Err().Error(), "reload: exit status 1") {
			t.Errorf("got %v", state.Err())
		}
		changed := 0
		for _, h := range w.hosts {
			if h.version() == 2 {
				changed++
			}
		}
		if changed != state.Counts().Done {
			t.Errorf("%d hosts use version 2, records %v", changed, state.Hosts)
		}
		w.version(3)
		_, err := Propose(t.Context(), w.desk, Request{Root: root, Version: 3, Digest: digest})
		if !errors.Is(err, ErrOpen) {
			t.Errorf("a second proposal: got %v, want ErrOpen", err)
		}
		back, err := Propose(t.Context(), w.desk, Request{
			Root: root, Version: 3, Digest: digest, RollbackOf: 2, Replace: name, Strategy: Strategy{Parallel: 10},
		})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		state = w.awaitPhase(back, PhaseDone)
		old, err := Read(t.Context(), w.desk, root, name)
		if err != nil || old.Phase() != PhaseRolledBack || !errors.Is(old.Err(), ErrReplaced) {
			t.Errorf("what was rolled back is %q: %v, %v", old.Phase(), old.Err(), err)
		}
		if state.Proposal.Previous != 1 {
			t.Errorf("previous is %d, want the version that was in use everywhere", state.Proposal.Previous)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the rollback took %s", took)
		}
	})
}

func TestRollout_RetryLetsFailedHostsTryAgain(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		w.hosts["web-01"].fail[2] = "not yet"
		name := w.propose(2, Strategy{Parallel: 4})
		w.awaitPhase(name, PhaseHalted)
		w.hosts["web-01"].mu.Lock()
		delete(w.hosts["web-01"].fail, 2)
		w.hosts["web-01"].mu.Unlock()
		if err := Retry(t.Context(), w.desk, root, name, Order{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(name, PhaseDone)
	})
}

func TestRollout_PauseResumeAbort(t *testing.T) {
	inBubble(t, 6, func(t *testing.T, w *world) {
		hold := make(chan struct{})
		for _, h := range w.hosts {
			h.hold = hold
		}
		name := w.propose(2, Strategy{Parallel: 1})
		w.await("one active host", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.active) == 1 })
		if err := Pause(t.Context(), w.desk, root, name, Order{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		close(hold)
		w.awaitPhase(name, PhasePaused)
		time.Sleep(5 * time.Minute) // virtual
		if state := w.awaitPhase(name, PhasePaused); begun(state) != 1 {
			t.Errorf("hosts started while paused: %v", state.Hosts)
		}
		if err := Resume(t.Context(), w.desk, root, name, Order{}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(name, PhaseDone)

		other := w.propose(3, Strategy{Parallel: 1, Bake: Duration(time.Hour), Canary: 1})
		w.await("the canary", func() bool { s, _ := Read(t.Context(), w.desk, root, other); return begun(s) == 1 })
		if err := Abort(t.Context(), w.desk, root, other, Order{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(other, PhaseHalted)
	})
}

func TestRollout_VanishedHostHaltsAndCountsAgainstK(t *testing.T) {
	inBubble(t, 6, func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			h.hold = make(chan struct{}) // nobody finishes: a version that kills
		}
		name := w.propose(2, Strategy{Parallel: 2, Grace: Duration(time.Minute)})
		w.await("two active hosts", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.active) == 2 })
		var victims []string
		w.mu.Lock()
		for id := range w.active {
			victims = append(victims, id)
		}
		w.mu.Unlock()
		for _, id := range victims {
			w.hosts[id].crash()
		}
		state := w.awaitPhase(name, PhaseHalted)
		if begun(state) != 2 {
			t.Errorf("%d hosts started, K is 2: %v", begun(state), state.Hosts)
		}
		if !slices.Contains(victims, state.Gate.Host) {
			t.Errorf("halt names %q, the vanished are %v", state.Gate.Host, victims)
		}
	})
}

// crash ends the process without its saying so: its session expires later.
func (h *simpleHost) crash() {
	h.stop() // the session is closed, which is the same to the others, sooner
}

func TestRollout_RebootDuringAHaltKeepsThePreviousVersion(t *testing.T) {
	inBubble(t, 5, func(_ *testing.T, w *world) {
		for _, h := range w.hosts {
			h.fail[2] = "no"
		}
		name := w.propose(2, Strategy{Parallel: 1})
		state := w.awaitPhase(name, PhaseHalted)
		for id, h := range w.hosts {
			if state.Hosts[id].State != HostCommit {
				continue
			}
			h.stop()
			h.mu.Lock()
			h.inUse, h.history = 0, nil
			h.mu.Unlock()
			h.start()
			w.await(id+" to use the previous version", func() bool { return h.version() == 1 })
		}
		late := &simpleHost{w: w, id: "late", refuse: map[int64]string{}, fail: map[int64]string{}}
		w.hosts["late"] = late
		late.start()
		w.await("the late joiner to use the previous version", func() bool { return late.version() == 1 })
	})
}

func TestRollout_TwoProposersOneWins(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		results := make(chan error, 2)
		for i := range 2 {
			w.version(int64(2 + i))
			go func() {
				_, err := Propose(t.Context(), w.desk, Request{Root: root, Version: int64(2 + i), Digest: digest})
				results <- err
			}()
		}
		a, b := <-results, <-results
		if (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), ErrOpen) {
			t.Errorf("got %v and %v, want one winner and one ErrOpen", a, b)
		}
	})
}

func TestRollout_FrozenOrSupersededIsAborted(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.hosts["web-00"].stop() // its vote is missing: the rollout stays open
		ctx := t.Context()
		w.await("its subscriber to go", func() bool { _, there, _ := w.desk.Exists(ctx, SubscriptionPath(root, "web-00")); return !there })
		if _, _, err := w.desk.Create(ctx, SubscriptionPath(root, "web-00"), nil, session.Persistent); err != nil {
			t.Fatal(err)
		}
		name := w.propose(2, Strategy{Absent: AbsentSkip, VoteTimeout: Duration(time.Minute)})
		if _, _, err := w.desk.Create(ctx, trees.FreezePath(root), []byte("sales day"), session.Persistent); err != nil {
			t.Fatal(err)
		}
		if err := w.awaitPhase(name, PhaseAborted).Err(); !strings.Contains(err.Error(), "sales day") {
			t.Errorf("got %v", err)
		}
		_, err := Propose(ctx, w.desk, Request{Root: root, Version: 2, Digest: digest})
		if !errors.Is(err, ErrFrozen) {
			t.Errorf("a proposal while frozen: got %v", err)
		}
		if err := w.desk.Delete(ctx, trees.FreezePath(root), -1); err != nil {
			t.Fatal(err)
		}
		name = w.propose(2, Strategy{Absent: AbsentSkip, VoteTimeout: Duration(time.Minute)})
		if _, err := w.desk.Set(ctx, trees.ReadyPath(root), trees.Ready{Version: 9, Digest: digest}.Encode(), -1); err != nil {
			t.Fatal(err)
		}
		state := w.awaitPhase(name, PhaseReplaced)
		if !errors.Is(state.Err(), ErrReplaced) || !strings.Contains(state.Err().Error(), ResultSuperseded) {
			t.Errorf("got %v", state.Err())
		}
	})
}

func TestRollout_HealthGatePausesUntilTold(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		ctx := t.Context()
		for _, member := range []string{"a", "b", "c"} {
			if err := w.server.Create("/services/web/"+member, nil); err != nil {
				t.Fatal(err)
			}
		}
		hold := make(chan struct{})
		w.hosts["web-00"].hold = hold
		name := w.propose(2, Strategy{Parallel: 1, Gate: "/services/web", Canary: 1, Order: []string{"web-00"}})
		w.await("the first host", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.active) == 1 })
		for _, member := range []string{"a", "b"} {
			if err := w.server.Delete("/services/web/" + member); err != nil {
				t.Fatal(err)
			}
		}
		state := w.awaitPhase(name, PhasePaused)
		if !strings.Contains(state.Gate.Reason, "/services/web has 1 members, it had 3") {
			t.Errorf("got reason %q", state.Gate.Reason)
		}
		close(hold)
		time.Sleep(5 * time.Minute) // virtual
		if state := w.awaitPhase(name, PhasePaused); begun(state) != 1 {
			t.Errorf("hosts started past the gate: %v", state.Hosts)
		}
		if err := Resume(ctx, w.desk, root, name, Order{IgnoreGate: true}); err != nil {
			t.Fatal(err)
		}
		w.awaitPhase(name, PhaseDone)
	})
}

func TestRollout_CanariesByNameGoFirstAndBake(t *testing.T) {
	testhelp.OnlyAll(t, "minutes of a fleet with the race detector")
	inBubble(t, 5, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 5, Order: []string{"web-03"}, Bake: Duration(10 * time.Minute)})
		w.await("the canary", func() bool { return w.hosts["web-03"].version() == 2 })
		time.Sleep(5 * time.Minute) // virtual: in the middle of the bake
		for id, h := range w.hosts {
			if id != "web-03" && h.version() != 1 {
				t.Errorf("%s uses version %d before the bake is over", id, h.version())
			}
		}
		w.awaitPhase(name, PhaseDone)
	})
}

func TestRollout_AnotherVersionEndsIt(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 1, Canary: 1, Bake: Duration(time.Hour)})
		w.await("the canary", func() bool { s, _ := Read(t.Context(), w.desk, root, name); return begun(s) == 1 })
		if _, err := w.desk.Set(t.Context(), trees.ReadyPath(root), trees.Ready{Version: 9, Digest: digest}.Encode(), -1); err != nil {
			t.Fatal(err)
		}
		if state := w.awaitPhase(name, PhaseReplaced); state.Gate.Result != ResultSuperseded {
			t.Errorf("got %+v", state.Gate)
		}
		for id, h := range w.hosts {
			w.await(id+" to use version 9", func() bool { return h.version() == 9 })
		}
		w.awaitPhase(w.propose(10, Strategy{Parallel: 4}), PhaseDone)
	})
}

func TestRollout_ToleratedFailureKeepsThePreviousVersion(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, w *world) {
		w.hosts["web-02"].fail[2] = "no"
		state := w.awaitPhase(w.propose(2, Strategy{Parallel: 1, MaxFailures: 2}), PhaseDone)
		if !slices.Equal(state.Gate.Failed, []string{"web-02"}) || state.Gate.Counts.Done != 3 {
			t.Errorf("got %+v", state.Gate)
		}
		h := w.hosts["web-02"]
		h.stop()
		h.mu.Lock()
		h.inUse = 0
		h.mu.Unlock()
		h.start()
		w.await("it to use version 1 after its restart", func() bool { return h.version() == 1 })
	})
}
