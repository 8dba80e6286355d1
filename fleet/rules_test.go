package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// sceneOf is a scene of hosts that all subscribe and were called, with records in
// the states; an empty state is no record.
func sceneOf(gate Gate, strategy Strategy, states map[string]string) *scene {
	sc := &scene{
		now: time.Unix(1000, 0), name: "r-0000000001", agent: "z", gate: gate, gateV: 7, called: time.Unix(999, 0),
		proposal:  Proposal{Version: 2, Previous: 1, Hosts: len(states), Strategy: strategy.WithDefaults(len(states))},
		snapshots: map[string][]string{}, shards: map[string][]string{}, records: map[string]*hostState{}, live: map[string]bool{},
		seen: map[string]time.Time{}, missing: map[string]time.Time{}, withdrawn: map[string]int{}, denied: map[string]bool{},
	}
	for id, state := range states {
		shard := Shard(id)
		sc.shards[shard] = append(sc.shards[shard], id)
		sc.snapshots[shard] = append(sc.snapshots[shard], id)
		sc.live[id], sc.seen[id] = true, time.Unix(998, 0)
		if state != "" {
			sc.records[id] = &hostState{HostRecord: HostRecord{State: state, Error: state + " it is"}, since: time.Unix(999, 0)}
		}
	}
	return sc
}

// said is what a scene decides, in words.
func said(sc *scene) string {
	var words []string
	for _, a := range sc.decide() {
		word := a.what
		if a.gate != nil && a.gate.Reason != "" {
			word += ": " + a.gate.Reason
		}
		if len(a.records) > 0 {
			word += ": " + strings.Join(sortedKeys(a.records), " ")
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

func TestDecide(t *testing.T) {
	voting, open, halted := Gate{State: GateVoting}, Gate{State: GateOpen, Wave: WaveAll}, Gate{State: GateHalted, Wave: WaveAll}
	const commit, skipped, wait, granted, started, done, failed = HostCommit, HostSkipped, HostWait, HostGranted, HostStarted, HostDone, HostFailed
	hosts := func(states ...string) map[string]string {
		m := map[string]string{}
		for i, s := range states {
			m[string(rune('a'+i))] = s
		}
		return m
	}
	tests := []struct {
		name     string
		gate     Gate
		strategy Strategy
		hosts    map[string]string
		change   func(*scene)
		want     string
	}{
		{"one of two has voted", voting, Strategy{}, hosts(commit, ""), nil, ""},
		{"all have", voting, Strategy{}, hosts(commit, commit), nil, "commit"},
		{"one is in maintenance", voting, Strategy{}, hosts(commit, skipped), nil, "commit"},
		{"all are in maintenance", voting, Strategy{}, hosts(skipped, skipped), nil, "refuse: the vote cannot start: all subscribers are in maintenance"},
		{"paused", Gate{State: GateVoting, Paused: true}, Strategy{}, hosts(commit), nil, ""},
		{"time is up", voting, Strategy{}, hosts(commit, ""), func(sc *scene) { sc.called = time.Unix(940, 0) }, "refuse: no vote within 1m0s from b"},
		{"time is up and absent ones are skipped", voting, Strategy{Absent: AbsentSkip}, hosts(commit, ""), func(sc *scene) { sc.called = time.Unix(940, 0) }, "commit"},
		{"a named canary has not voted", voting, Strategy{Order: []string{"b"}}, hosts(commit, skipped), nil, "refuse: none of the canaries checks the version: b"},
		{"a shard was not called", voting, Strategy{}, hosts(commit), func(sc *scene) { sc.shards["07"] = []string{"q"} }, "call"},
		{"dry, with an answer missing", voting, Strategy{}, hosts(HostAbort, ""), func(sc *scene) { sc.proposal.Dry = true }, ""},
		{"dry, all have answered", voting, Strategy{}, hosts(HostAbort, commit), func(sc *scene) { sc.proposal.Dry = true }, "close: planned"},
		{"refused, one has not said why", Gate{State: GateRefused}, Strategy{}, hosts(HostAbort, ""), func(sc *scene) { sc.refused = sc.now }, ""},
		{"refused", Gate{State: GateRefused}, Strategy{}, hosts(HostAbort, commit), nil, "close: aborted"},
		{"refused in the place of another", Gate{State: GateRefused}, Strategy{}, hosts(HostAbort), func(sc *scene) { sc.proposal.Replaces = []string{"r"} }, ""},
		{"ready has moved", open, Strategy{}, hosts(commit), func(sc *scene) { sc.superseded = true }, "close: superseded: superseded: another version was published meanwhile"},
		{"K is 1", open, Strategy{Parallel: 1}, hosts(commit, wait, skipped), nil, "grant: a"},
		{"K is 2, one has a grant", open, Strategy{Parallel: 2}, hosts(granted, commit, commit), func(sc *scene) { sc.records["a"].Gate = 7 }, "grant: b"},
		{"an old grant", open, Strategy{Parallel: 2}, hosts(granted, commit, commit), nil, "grant again: a"},
		{"a grant that is not taken", open, Strategy{Parallel: 1}, hosts(granted, commit), func(sc *scene) {
			sc.records["a"].Gate, sc.records["a"].since = 7, time.Unix(900, 0)
		}, "take back: a"},
		{"done within the pause", open, Strategy{Parallel: 1, Pause: Duration(time.Minute)}, hosts(done, commit), nil, ""},
		{"the coordinator's host is last", open, Strategy{Parallel: 1}, hosts(commit, commit), func(sc *scene) { sc.agent = "a" }, "grant: b"},
		{"paused", Gate{State: GateOpen, Wave: WaveAll, Paused: true}, Strategy{}, hosts(commit), nil, ""},
		{"one named canary", Gate{State: GateOpen, Wave: WaveCanary}, Strategy{Parallel: 2, Order: []string{"b"}}, hosts(commit, commit), nil, "grant: b"},
		{"absent, first seen", open, Strategy{Parallel: 1}, hosts(started), func(sc *scene) { sc.live = map[string]bool{} }, ""},
		{"absent for the grace time", open, Strategy{Parallel: 1}, hosts(started), func(sc *scene) {
			sc.live, sc.missing["a"] = map[string]bool{}, time.Unix(940, 0)
		}, "lost: a"},
		{"a lost one keeps its place", open, Strategy{Parallel: 2, MaxFailures: 9}, hosts(started, commit, commit), func(sc *scene) {
			sc.records["a"].Lost = true
			delete(sc.live, "a")
		}, "grant: b"},
		{"lost ones hold all places", open, Strategy{Parallel: 1, MaxFailures: 9}, hosts(started, commit), func(sc *scene) {
			sc.records["a"].Lost = true
			delete(sc.live, "a")
		}, "halt: started it is"},
		{"one failure of two", open, Strategy{Parallel: 1, MaxFailures: 2}, hosts(failed, commit), nil, "grant: b"},
		{"two failures of two", open, Strategy{Parallel: 1, MaxFailures: 2}, hosts(failed, failed, commit), nil, "halt: failed it is"},
		{"a failure of the round before", Gate{State: GateOpen, Wave: WaveAll, Round: 1}, Strategy{Parallel: 1}, hosts(failed, commit), nil, "retry: a"},
		{"halted", halted, Strategy{}, hosts(failed, commit), nil, ""},
		{"all are done", open, Strategy{MaxFailures: 2}, hosts(done, failed, skipped), nil, "close: done"},
		{"a lost host is absent at the end", open, Strategy{Parallel: 2, MaxFailures: 2}, hosts(done, started), func(sc *scene) {
			sc.records["b"].Lost = true
			delete(sc.live, "b")
		}, "fail the absent: b"},
		{"a live host has no record", open, Strategy{}, hosts(done, ""), nil, ""},
		{"and has had time for it", open, Strategy{}, hosts(done, ""), func(sc *scene) { sc.now = time.Unix(2000, 0) }, "close: done"},
		{
			"no canary is done, and none is left",
			Gate{State: GateOpen, Wave: WaveCanary},
			Strategy{Canary: 1, MaxFailures: 2},
			hosts(failed, commit), func(sc *scene) { sc.records["a"].Canary = true },
			"halt: no canary is done, and none is left",
		},
		{"the bake is not over", Gate{State: GateOpen, Wave: WaveCanary}, Strategy{Canary: 1, Bake: Duration(time.Minute)}, hosts(done, commit), func(sc *scene) { sc.records["a"].Canary = true }, ""},
		{"the bake is over", Gate{State: GateOpen, Wave: WaveCanary}, Strategy{Canary: 1, Bake: Duration(time.Second)}, hosts(done, commit), func(sc *scene) { sc.records["a"].Canary = true }, "open to all"},
		{
			"the group has lost two",
			Gate{State: GateOpen, Wave: WaveAll, Members: 3},
			Strategy{Gate: "/g"},
			hosts(commit), func(sc *scene) { sc.members = 1 },
			"pause: health gate: /g has 1 members, it had 3",
		},
	}
	for _, tt := range tests {
		sc := sceneOf(tt.gate, tt.strategy, tt.hosts)
		if tt.change != nil {
			tt.change(sc)
		}
		if got := said(sc); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestTakeBack: a host that does not use its grant waits again, and the second time it
// is not waited for any more.
func TestTakeBack(t *testing.T) {
	sc := sceneOf(Gate{State: GateOpen}, Strategy{}, map[string]string{"a": HostGranted})
	for _, want := range []string{HostWait, HostSkipped} {
		now := sc.takeBack("a", HostRecord{State: HostGranted, Gate: 7, Canary: true})
		if now.State != want || now.Gate != 0 || now.Canary {
			t.Errorf("withdrawn %d times: %+v", sc.withdrawn["a"], now)
		}
		sc.withdrawn["a"]++
	}
}

// TestCanariesDifferFromCandidates: a version that kills its canaries must not kill
// those that would halt it.
func TestCanariesDifferFromCandidates(t *testing.T) {
	same := 0
	for n := range 200 {
		rollout := rolloutName(int64(n))
		first := func(purpose string) string {
			return slices.MinFunc(ids(50), func(a, b string) int {
				if draw(purpose, rollout, a) < draw(purpose, rollout, b) {
					return -1
				}
				return 1
			})
		}
		if first(drawCanary) == first(drawCoordinate) {
			same++
		}
	}
	if same > 20 {
		t.Errorf("the first canary is the first candidate in %d of 200 rollouts", same)
	}
}

// TestBounds: what a rollout of 100,000 hosts writes at once, with the longest names and
// texts, and with usual and the longest ids.
func TestBounds(t *testing.T) {
	testhelp.OnlyAll(t, "minutes of a fleet with the race detector")
	delta := &trees.Delta{From: digest, Set: map[string][]byte{"k": make([]byte, 12<<10)}}
	usual := func(i int) string { return fmt.Sprintf("host-%05d.some-rack.some-site.example.org", i) }
	longest := func(i int) string { return fmt.Sprintf("%05d-%s", i, strings.Repeat("x", 128-6)) }
	long := func(id func(int) string, why int) Request {
		r := Request{Delta: delta, Who: strings.Repeat("w", 200), Why: strings.Repeat("<", why), Replace: rolloutName(0)}
		for i := range 100 {
			r.Strategy.Order = append(r.Strategy.Order, id(i))
		}
		return r
	}
	t.Run("long texts", func(t *testing.T) { bounds(t, usual, long(usual, 16<<10)) })
	t.Run("long ids, too", func(t *testing.T) { bounds(t, longest, long(longest, 14<<10)) })
}

const (
	mostZnode = 256 << 10
	mostMulti = 512 << 10
	mostList  = 1 << 20
)

func bounds(t *testing.T, id func(int) string, r Request) {
	t.Helper()
	shards := map[string][]string{}
	for i := range 100_000 {
		shards[Shard(id(i))] = append(shards[Shard(id(i))], id(i))
	}
	names := 0
	for _, ids := range shards {
		size := 0
		for _, id := range ids {
			size += len(id) + 4
		}
		names = max(names, size)
	}
	if names > mostList {
		t.Errorf("the largest list of a shard has %d bytes", names)
	}
	size, znode := 0, 0
	server := memzk.New(memzk.Options{Committed: func(changes []memzk.Change) {
		all := 0
		for _, c := range changes {
			all += len(c.Path) + len(c.Data)
			znode = max(znode, len(c.Data))
		}
		size = max(size, all)
	}})
	defer server.Close()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{"memzk:2181"}, Timeout: 10 * time.Second, Dial: server.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first := trees.Ready{Version: 1, Digest: digest}
	nodes := map[string][]byte{trees.ReadyPath(root): first.Encode(), trees.VersionPath(root, 2): nil}
	for shard := range shards {
		nodes[shardPath(root, shard)] = nil
	}
	if r.Replace != "" {
		nodes[currentPath(root)] = []byte(r.Replace)
		nodes[gatePath(root, r.Replace)] = encode(largestGate(id))
		old := Proposal{Version: 2}
		for i := range 100 {
			old.Replaces = append(old.Replaces, rolloutName(int64(i)))
		}
		nodes[rolloutPath(root, r.Replace)] = encode(old)
	}
	for _, path := range sortedKeys(nodes) {
		if err := server.Create(path, nodes[path]); err != nil {
			t.Fatal(err)
		}
	}
	r.Root, r.Version, r.Digest = root, 2, digest
	proposal := &proposer{s: s, r: r}
	if err := proposal.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	ops, err := proposal.open(t.Context(), shards)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Multi(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	name, proposed := proposal.name, size
	// What the coordinator writes.
	p, _, err := readRecord[Proposal](t.Context(), s, rolloutPath(root, name))
	if err != nil {
		t.Fatal(err)
	}
	called := 0
	for _, ids := range shards {
		call := shardCall{Format: callFormat, Rollout: name, Proposal: p, State: GateOpen, Gate: 1 << 30}
		called = max(called, len(encode(call))+len(encode(shardHosts{ids})))
		znode = max(znode, len(encode(call)), len(encode(shardHosts{ids})))
	}
	grants, progress := 0, Progress{Failures: map[string]string{}}
	for i := range maxGrants {
		record := HostRecord{State: HostGranted, Version: 1 << 30, From: 1 << 30, Error: clip(strings.Repeat("x", 1<<20)), Life: digest}
		grants += len(recordPath(root, name, id(i))) + len(encode(record))
		if i < maxFailuresShown {
			progress.Failures[id(i)] = clip(strings.Repeat("\x01", 1<<20))
		}
	}
	closed := len(encode(largestGate(id))) + len(encode(trees.Ready{Version: 2, Digest: digest, Delta: delta2k(p.Delta)}))
	znode = max(znode, len(encode(progress)), len(encode(largestGate(id))))
	if znode > mostZnode || max(size, called, grants, closed) > mostMulti {
		t.Errorf("the largest znode has %d bytes; the proposal writes %d, a call %d, grants %d, the end %d", znode, size, called, grants, closed)
	}
	t.Logf("largest list %d bytes, znode %d, proposal %d, call %d, grants %d, end %d", names, znode, proposed, called, grants, closed)
}

func delta2k(d *trees.Delta) *trees.Delta {
	if d.Fits(readyDelta) {
		return d
	}
	return nil
}

// largestGate is a gate that has seen much.
func largestGate(id func(int) string) Gate {
	words := strings.Repeat("\x01", 1<<20)
	g := Gate{State: GateHalted, Wave: WaveCanary, Host: id(0), Reason: clip(words), By: id(1), Counts: &Counts{}}
	for i := range maxNames {
		g.Failed, g.Skipped = append(g.Failed, id(i)), append(g.Skipped, id(i))
		g.Past = addPast(g.Past, GateState{State: GateHalted, Host: id(i), By: id(i), Reason: words, At: time.Unix(1, 0)})
	}
	return g
}

// A proposal that would not fit into every call is refused in words.
func TestPropose_TooLarge(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, w *world) {
		w.version(2)
		_, err := Propose(t.Context(), w.desk, Request{Root: root, Version: 2, Digest: digest, Why: strings.Repeat("<", 64<<10)})
		if !errors.Is(err, config.ErrBounds) {
			t.Errorf("got %v", err)
		}
	})
}

// A canary that is named twice is one canary.
func TestStrategy_NamedTwice(t *testing.T) {
	if s := (Strategy{Order: []string{"b", "a", "b"}}).WithDefaults(5); s.Canary != 2 || !slices.Equal(s.Order, []string{"a", "b"}) {
		t.Errorf("got %+v", s)
	}
}

func TestRolloutNumber(t *testing.T) {
	for name, want := range map[string]int64{"r-0000000000": 0, "r-0000000042": 42, "r-42": -1, "current": -1, "r-00000000-1": -1} {
		got, ok := rolloutNumber(name)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: got %d, %v", name, got, ok)
		}
	}
}
