package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// foreignMark is what Previous says of a ready that another tool has set, past all
// rules.
const foreignMark = 77

// book gets every transaction of the server in memory, in order and before any client
// can see it. It checks what must hold after each:
//
//   - one rollout is open, and its gate is not closed; a gate goes voting -> open,
//     refused, closed; open <-> halted; open, halted, refused -> closed; it never
//     changes once it is closed;
//   - a gate opens when every host that was called has voted commit, or stands
//     aside, or when the time is up and absent ones are skipped; with a commit, while
//     it is not paused, the config is not frozen, and ready is what was proposed for;
//   - granted and started hosts, and those done within the pause, are never more
//     than K;
//   - a host starts only while the gate is open and not paused, and begins another
//     life only while it is open; with max_failures 1 no host starts after a failure;
//   - before all may start only canaries do, never more than were asked for; all may
//     start only when a canary is done and the bake has passed since the last;
//   - ready moves while a rollout is open only with its end, or by another tool;
//   - a rollout that is closed gets no call and no grant;
//   - a rollout replaces only those that were made for the same ready;
//   - the versions of ready and of the open rollout exist.
type book struct {
	t     *testing.T
	moved chan struct{} // has one value after a record of a rollout has changed

	mu       sync.Mutex // guards what follows
	current  string
	frozen   bool
	ready    trees.Ready
	readyZ   int32            // version of the znode
	versions map[int64]string // number -> digest
	buckets  map[int64][]string
	busy     func(id, but string) string // see sim
	rollouts map[string]*chapter
	live     map[string]bool
	liveAt   map[string]time.Time
	jumped   time.Time // when ZooKeeper's clock did
	twin     string    // two agents have this id
	behind   bool      // some hosts may read what is old, or share an id
}

// chapter is one rollout.
type chapter struct {
	proposal Proposal
	gate     Gate
	called   map[string][]string
	calledAt time.Time
	hosts    map[string]HostRecord
	doneAt   map[string]time.Time
	ledAt    time.Time // since when its coordinator leads
	leaders  map[string]string
	gone     map[string]HostRecord // that were compacted
	withdrew map[string]int        // grants that this coordinator has taken back
	baking   time.Time             // when the last canary that counts was done
	baked    time.Time             // the end of the bake, as first told
	readies  map[int64]bool        // that ready has named since
}

// cut reports whether what a coordinator knows of the time since then may be wrong: it
// has begun after that, and the clock that stamps znodes has jumped.
func (b *book) cut(c *chapter, since time.Time) bool {
	return c.ledAt.After(since) && b.jumped.After(since)
}

// lag notes that a server falls behind.
func (b *book) lag() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.behind = true
}

// jump notes that ZooKeeper's clock jumps.
func (b *book) jump() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jumped = time.Now()
}

func newBook(t *testing.T) *book {
	return &book{readyZ: -1, t: t, moved: make(chan struct{}, 1), rollouts: map[string]*chapter{}, versions: map[int64]string{}, buckets: map[int64][]string{}, live: map[string]bool{}, liveAt: map[string]time.Time{}}
}

// awaitMove waits until a rollout moves, not for long: who acts then is between
// what others look at and what they do.
func (b *book) awaitMove(ctx context.Context) {
	select {
	case <-b.moved: // of before
	default:
	}
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-b.moved:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// step is what one transaction does, as far as the rules ask for it.
type step struct {
	opened, closed string // rollouts
	readyWas       trees.Ready
	ready          bool
	gates          map[string]Gate                  // as they were
	records        map[string]map[string]HostRecord // likewise
	called         []string
}

// committed is for memzk.Options.
func (b *book) committed(changes []memzk.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &step{gates: map[string]Gate{}, records: map[string]map[string]HostRecord{}, readyWas: b.ready}
	was := b.current
	for _, c := range changes {
		b.note(s, c.Path, c.Data)
	}
	if was != b.current {
		s.opened, s.closed = b.current, was
	}
	b.check(s, was)
}

// note takes over one change.
func (b *book) note(s *step, path string, data []byte) {
	rest, below := strings.CutPrefix(path, root+"/")
	if !below {
		return
	}
	dir, name, _ := strings.Cut(rest, "/")
	switch dir {
	case "ready":
		if data == nil {
			b.readyZ = -1 // the next one is another znode
		} else {
			s.ready = true
			b.readyZ++
			b.ready, _, _ = trees.ParseReady(data)
			if c := b.rollouts[b.current]; c != nil {
				c.readies[b.ready.Version] = true
			}
		}
	case "freeze":
		b.frozen = data != nil
	case "versions":
		n, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return
		}
		delete(b.versions, n)
		if data != nil {
			var head struct {
				Digest string `json:"digest"`
			}
			line, sums, _ := bytes.Cut(data, []byte{'\n'})
			_ = json.Unmarshal(line, &head)
			b.versions[n] = head.Digest
			for sum := range slices.Chunk(sums, sha256.Size) {
				b.buckets[n] = append(b.buckets[n], hex.EncodeToString(sum))
			}
		} else {
			delete(b.buckets, n)
		}
	case "objects":
		_, sum, _ := strings.Cut(name, "/")
		for n, sums := range b.buckets {
			if data == nil && slices.Contains(sums, sum) {
				b.t.Errorf("an object of v%d is deleted before it", n)
			}
		}
	case "rollouts":
		b.rollout(s, name, data)
	}
}

func (b *book) rollout(s *step, path string, data []byte) {
	name, part, _ := strings.Cut(path, "/")
	switch {
	case path == "current":
		b.current = string(data)
		return
	case name == "shards":
		if _, id, ok := strings.Cut(part, "/"); ok {
			if data != nil && !b.live[id] {
				b.liveAt[id] = time.Now()
			}
			b.live[id] = data != nil
		} else if len(data) > 0 {
			call, _ := decode[shardCall](path, data)
			s.called = append(s.called, call.Rollout)
		}
		return
	}
	if _, number := rolloutNumber(name); !number && !strings.HasPrefix(name, dryPrefix) {
		return
	}
	if part == "" && data != nil {
		b.rollouts[name] = &chapter{called: map[string][]string{}, hosts: map[string]HostRecord{}, doneAt: map[string]time.Time{}, readies: map[int64]bool{}, leaders: map[string]string{}, gone: map[string]HostRecord{}, withdrew: map[string]int{}}
		if len(data) > 0 { // else a candidate came after its end
			keep(b, name, data, &b.rollouts[name].proposal)
		}
		return
	}
	c := b.rollouts[name]
	if c == nil {
		return
	}
	select {
	case b.moved <- struct{}{}:
	default:
	}
	shard, id, record := strings.Cut(strings.TrimPrefix(part, "hosts/"), "/")
	switch {
	case part == "gate" && data != nil:
		if _, known := s.gates[name]; !known {
			s.gates[name] = c.gate
		}
		keep(b, name, data, &c.gate)
	case part == "progress" && len(data) > 0:
		var p Progress
		keep(b, name, data, &p)
		b.bakes(name, c, p.Baked)
	case strings.HasPrefix(part, "coordinator/"):
		c.ledAt, c.withdrew = time.Now(), map[string]int{} // the leader reads the clock by it
		number := part[len(part)-10:]
		if c.leaders[number] = string(data); data == nil {
			delete(c.leaders, number)
		}
	case !strings.HasPrefix(part, "hosts/"):
	case record && data == nil:
		b.compacted(name, id, c.hosts[id])
		c.gone[id] = c.hosts[id]
		delete(c.hosts, id)
	case record:
		if s.records[name] == nil {
			s.records[name] = map[string]HostRecord{}
		}
		s.records[name][id] = c.hosts[id]
		var r HostRecord
		keep(b, name, data, &r)
		if r.State == HostDone && c.hosts[id].State != HostDone {
			c.doneAt[id] = time.Now()
		}
		c.hosts[id] = r
	case data != nil:
		var snap shardHosts
		keep(b, name, data, &snap)
		c.called[shard], c.calledAt = snap.IDs, time.Now()
	}
}

// keep decodes a record.
func keep[T any](b *book, path string, data []byte, into *T) {
	record, err := decode[T](path, data)
	if err != nil {
		b.t.Error(err)
	}
	*into = record
}

// steps are the permitted changes of a gate.
var gateSteps = map[string][]string{
	"":          {GateVoting},
	GateVoting:  {GateVoting, GateOpen, GateRefused, GateClosed},
	GateOpen:    {GateOpen, GateHalted, GateClosed},
	GateHalted:  {GateOpen, GateClosed},
	GateRefused: {GateClosed},
}

func (b *book) check(s *step, was string) {
	if b.current != "" && was != "" && b.current != was && b.rollouts[was].gate.State != GateClosed {
		b.t.Errorf("%s is opened while %s is open", b.current, was)
	}
	if s.closed != "" && b.rollouts[s.closed].gate.State != GateClosed {
		b.t.Errorf("%s is not open any more and its gate is %+v", s.closed, b.rollouts[s.closed].gate)
	}
	if c := b.rollouts[b.current]; b.current != "" && (c == nil || c.gate.State == GateClosed) {
		b.t.Errorf("%s is open and its gate is closed", b.current)
	}
	if c := b.rollouts[s.opened]; c != nil {
		for _, old := range c.proposal.Replaces {
			if at := b.rollouts[old].proposal.Ready; at != c.proposal.Ready {
				b.t.Errorf("%s replaces %s, which was made for another ready: %+v, %+v", s.opened, old, at, c.proposal.Ready)
			}
		}
	}
	for name, before := range s.gates {
		b.gate(name, before, b.rollouts[name].gate, s)
	}
	for name, records := range s.records {
		for id, before := range records {
			b.host(name, id, before)
		}
		b.count(name)
	}
	for _, name := range s.called {
		if c := b.rollouts[name]; c == nil || c.gate.State == GateClosed || c.gate.State == GateRefused {
			b.t.Errorf("%s calls hosts, its gate is %+v", name, c)
		}
	}
	if s.ready && was != "" && s.closed != was && b.ready.Previous != foreignMark {
		b.t.Errorf("ready becomes v%d while %s is open", b.ready.Version, was)
	}
	if s.ready && b.ready.Rollout != "" && b.ready.Previous != foreignMark {
		if c := b.rollouts[b.ready.Rollout]; c == nil || c.gate.Result != ResultDone || c.proposal.Version != b.ready.Version {
			b.t.Errorf("ready is v%d of %s, which is %+v", b.ready.Version, b.ready.Rollout, c)
		}
	}
	b.exist()
}

// exist checks that no version in use is gone.
func (b *book) exist() {
	needed := []int64{b.ready.Version}
	if c := b.rollouts[b.current]; b.current != "" && c != nil {
		needed = append(needed, c.proposal.Version)
	}
	for _, n := range needed {
		if _, ok := b.versions[n]; !ok && n != 0 {
			b.t.Errorf("v%d is needed by ready v%d or by %s, and is gone", n, b.ready.Version, b.current)
		}
	}
}

func (b *book) gate(name string, before, now Gate, s *step) {
	if !slices.Contains(gateSteps[before.State], now.State) {
		b.t.Errorf("%s: the gate was %+v and is %+v", name, before, now)
	}
	if lost := lostPast(before, now); lost != "" {
		b.t.Errorf("%s: the past of the gate lacks %s\nit was %+v\nand is %+v", name, lost, before, now)
	}
	c := b.rollouts[name]
	if before.State == GateVoting && now.State == GateOpen {
		b.decided(name, c, before)
	}
	if before.Wave == WaveCanary && now.Wave == WaveAll {
		b.baked(name, c)
	}
	if now.State == GateClosed && now.Result == ResultDone {
		for id, r := range c.hosts {
			if r.active() {
				b.t.Errorf("%s is closed as done, %s is %s", name, id, r.State)
			}
		}
		if !s.ready || before.State != GateOpen || before.Paused {
			b.t.Errorf("%s is closed as done, it was %+v, ready moves: %v", name, before, s.ready)
		}
	}
	if now.State == GateClosed && before.State == GateRefused && len(c.proposal.Replaces) > 0 && now.Result == ResultAborted {
		b.t.Errorf("%s has taken the place of %v, was refused, and is closed: hosts use different versions", name, c.proposal.Replaces)
	}
}

// lostPast says what the past of a gate lacks after one write: the state that was
// replaced, if somebody caused it, or one before that is still within the bound.
func lostPast(before, now Gate) string {
	want := slices.Clone(before.Past)
	if before.caused(time.Time{}) != now.caused(time.Time{}) && before.By+before.Host != "" {
		want = append(want, before.caused(time.Time{}))
	}
	if len(want) > 20 {
		want = want[len(want)-20:]
	}
	if len(now.Past) != len(want) {
		return fmt.Sprintf("%d states of %d", len(want)-len(now.Past), len(want))
	}
	for i, p := range now.Past {
		if p.At.IsZero() || p.By != want[i].By || p.State != want[i].State || p.Paused != want[i].Paused || p.Host != want[i].Host {
			return fmt.Sprintf("%+v", want[i])
		}
	}
	return ""
}

// decided checks that no host was passed over, and that each had its whole time.
func (b *book) decided(name string, c *chapter, before Gate) {
	// Znodes know the time in milliseconds.
	late := time.Since(c.calledAt) > time.Duration(c.proposal.Strategy.VoteTimeout)-10*time.Millisecond || b.cut(c, c.calledAt)
	commits := 0
	for id, r := range c.hosts {
		switch r.State {
		case HostCommit:
			commits++
		case HostAbort:
			b.t.Errorf("%s is opened, and %s said abort", name, id)
		}
	}
	for _, ids := range c.called {
		for _, id := range ids {
			if s := c.hosts[id].State; s != HostCommit && s != HostSkipped && (!late || c.proposal.Strategy.Absent != AbsentSkip) {
				b.t.Errorf("%s is opened, and %s has said %q\n%s\ncalled %s ago, led %s, jump %s, %+v", name, id, s, b.words(), time.Since(c.calledAt), time.Since(c.ledAt), time.Since(b.jumped), c.proposal.Strategy)
			}
		}
	}
	if commits == 0 || before.Paused || b.frozen || c.proposal.Dry || c.proposal.Ready.Version != b.readyZ {
		b.t.Errorf("%s is opened: %d commits, gate %+v, frozen: %v, dry: %v, ready %d of %d", name, commits, before, b.frozen, c.proposal.Dry, b.readyZ, c.proposal.Ready.Version)
	}
}

// baked checks that the canaries were given their time.
func (b *book) baked(name string, c *chapter) {
	done, last := 0, time.Time{}
	for id, r := range c.hosts {
		if r.Canary && r.State == HostDone {
			done++
			last = later(last, c.doneAt[id])
		}
		if r.active() && !r.Lost {
			b.t.Errorf("%s is opened to all, %s is %s", name, id, r.State)
		}
	}
	if bake := time.Duration(c.proposal.Strategy.Bake); done == 0 || time.Since(last) < bake-10*time.Millisecond && !b.cut(c, last) {
		b.t.Errorf("%s is opened to all %s after the last of %d canaries, bake is %s", name, time.Since(last), done, bake)
	}
}

// host checks a change of a record.
func (b *book) host(name, id string, before HostRecord) {
	c := b.rollouts[name]
	now, strategy := c.hosts[id], c.proposal.Strategy
	switch {
	case now.State == HostGranted:
		if c.gate.State != GateOpen || name != b.current || c.proposal.Dry {
			b.t.Errorf("%s: %s is granted, gate %+v", name, id, c.gate)
		}
		if before.State == HostCommit && now.Canary && len(strategy.Order) == 0 {
			b.drawn(name, id, c)
		}
	case now.State == HostStarted && before.State != HostStarted:
		if !c.gate.runs() || before.State != HostGranted {
			b.t.Errorf("%s: %s was %q and starts, gate %+v", name, id, before.State, c.gate)
		}
		b.first(name, id, c)
	case now.State == HostStarted && now.Attempts > before.Attempts:
		if c.gate.State != GateOpen || now.Attempts > maxAttempts {
			b.t.Errorf("%s: %s begins life %d, gate %+v", name, id, now.Attempts, c.gate)
		}
	case now.State == HostCommit, now.State == HostWait, now.State == HostSkipped:
		if (before.State == "" || before.State == HostSkipped) && now.State != HostSkipped {
			b.from(name, id, now)
		}
		if c.gate.State == GateClosed && now.State != HostSkipped || before.State == HostDone || before.State == HostStarted && now.State != HostStarted {
			b.t.Errorf("%s: %s was %q and says %s, gate %+v", name, id, before.State, now.State, c.gate)
		}
		if now.State == HostCommit && c.gate.State != GateVoting {
			b.t.Errorf("%s: %s says commit, gate %+v", name, id, c.gate)
		}
	}
	if before.State == HostGranted && now.State == HostWait {
		if c.withdrew[id]++; c.withdrew[id] > 1 {
			b.t.Errorf("%s: %s has not taken a grant twice, and may get another", name, id)
		}
	}
	if now.State == HostStarted && strategy.MaxFailures == 1 && before.State != HostStarted {
		for other, r := range c.hosts {
			if r.State == HostFailed && r.Round == c.gate.Round {
				b.t.Errorf("%s: %s starts after the failure of %s", name, id, other)
			}
		}
	}
	if before.From != 0 && now.From != before.From && before.State != HostSkipped {
		b.t.Errorf("%s: %s used v%d and says v%d", name, id, before.From, now.From)
	}
}

// from checks what a host says that it uses, when it begins to take part.
func (b *book) from(name, id string, now HostRecord) {
	if other := b.busy(id, name); other != "" {
		b.t.Errorf("%s: %s says %s in the middle of its turn in %s", name, id, now.State, other)
	}
	c := b.rollouts[name]
	want := c.proposal.Previous
	for n, before := range b.rollouts {
		if r := before.hosts[id]; n != name && before.gate.Result == ResultDone && before.proposal.Version == want && r.State == HostFailed {
			want = r.From
			break
		}
	}
	for _, n := range c.proposal.Replaces {
		if r, ok := b.rollouts[n].hosts[id]; ok && r.State != HostSkipped {
			if want = r.From; r.State == HostDone {
				want = b.rollouts[n].proposal.Version
			}
			break
		}
	}
	if _, ok := b.versions[want]; ok && now.From != want && id != b.twin {
		b.t.Errorf("%s: %s says %s and that it uses v%d, want v%d\n%s", name, id, now.State, now.From, want, b.words())
	}
}

// gateOf is the gate of a rollout.
func (b *book) gateOf(name string) Gate {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rollouts[name].gate
}

// record is that of a host.
func (b *book) record(name, id string) HostRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rollouts[name].record(id)
}

// record is that of a host, or the one that it had before it was deleted.
func (c *chapter) record(id string) HostRecord {
	if r, ok := c.hosts[id]; ok {
		return r
	}
	return c.gone[id]
}

// first checks that only canaries start before all others may.
func (b *book) first(name, id string, c *chapter) {
	if c.gate.Wave != WaveCanary {
		return
	}
	begun := 0
	for _, r := range c.hosts {
		if r.State == HostStarted || r.State == HostDone || r.State == HostFailed {
			begun++
		}
	}
	order := c.proposal.Strategy.Order
	if len(order) > 0 && !slices.Contains(order, id) || begun > c.proposal.Strategy.Canary {
		b.t.Errorf("%s: %s starts among the canaries, %d have, of %d: %v", name, id, begun, c.proposal.Strategy.Canary, order)
	}
}

func (b *book) count(name string) {
	c := b.rollouts[name]
	active := 0
	for id, r := range c.hosts {
		if r.active() || r.State == HostDone && time.Since(c.doneAt[id]) < time.Duration(c.proposal.Strategy.Pause)-10*time.Millisecond && !b.cut(c, c.doneAt[id]) {
			active++
		}
	}
	if active > c.proposal.Strategy.Parallel {
		b.t.Errorf("%s: %d hosts have a turn, K is %d: %v", name, active, c.proposal.Strategy.Parallel, c.hosts)
	}
}

// drawn checks that of the hosts that could go first, the first by their canary draws
// do. It leaves out those that the coordinator may not know yet, and its own.
func (b *book) drawn(name, id string, c *chapter) {
	const known = 15 * time.Second
	draw := func(id string) string {
		sum := sha256.Sum256([]byte("canary/" + name + "/" + id))
		return string(sum[:])
	}
	for other, r := range c.hosts {
		if r.State != HostCommit || !b.live[other] || time.Since(b.liveAt[other]) < known || other == c.leader() || b.behind {
			continue
		}
		if draw(other) < draw(id) {
			b.t.Errorf("%s: %s is a canary before %s", name, id, other)
		}
	}
}

// bakedBy is the host that coordinates a rollout whose canaries are done; empty: none.
func (b *book) bakedBy() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.rollouts[b.current]
	if b.current == "" || c == nil || c.gate.Wave != WaveCanary || c.baking.IsZero() {
		return ""
	}
	return c.leader()
}

// leader is the host that coordinates the rollout: the first candidate.
func (c *chapter) leader() string {
	return c.leaders[slices.Min(append(slices.Collect(maps.Keys(c.leaders)), "~"))]
}

// bakes checks that the end of a bake, as the coordinators tell it, never moves to
// later while no further canary is done.
func (b *book) bakes(name string, c *chapter, end time.Time) {
	last := time.Time{}
	for id, r := range c.hosts {
		if r.Canary && r.State == HostDone {
			last = later(last, c.doneAt[id])
		}
	}
	switch {
	case end.IsZero():
	case last != c.baking:
		c.baking, c.baked = last, end
	case end.Sub(c.baked) > 3*time.Second && !b.jumped.After(c.proposal.Created) && !b.behind:
		b.t.Errorf("%s bakes until %s, and then until %s", name, c.baked, end)
	}
}

// compacted checks that a record may be deleted: no host reads it again.
func (b *book) compacted(name, id string, r HostRecord) {
	open := b.rollouts[b.current]
	switch {
	case r.State == HostFailed && b.ready.Rollout == name:
		b.t.Errorf("%s: %s has failed, and its record is deleted", name, id)
	case b.current != "" && open != nil && slices.Contains(open.proposal.Replaces, name):
		b.t.Errorf("%s replaces %s, and the record of %s is deleted there: %+v", b.current, name, id, r)
	}
}

// may checks that a host may be in the middle of using a version now, and
// returns its rollout and how many may be so at once.
func (b *book) may(id string, version int64) (string, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(b.rollouts)) {
		c := b.rollouts[name]
		// Of two agents with one id, the other may have given the turn up just now.
		r := c.record(id)
		if c.proposal.Version == version && (r.State == HostStarted || id == b.twin && r.Life != "") {
			return name, c.proposal.Strategy.Parallel
		}
	}
	b.t.Errorf("%s uses v%d, no record says that it has started", id, version)
	return "", 0
}

// shown checks that a host may use a version without a turn.
func (b *book) shown(id string, version int64, sum string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if want := b.versions[version]; want != "" && sum != want {
		b.t.Errorf("%s shows v%d with %s, it is %s", id, version, sum, want)
	}
	if c := b.rollouts[b.current]; c != nil && !c.proposal.Dry && !b.behind && !c.readies[version] {
		r, ok := c.hosts[id]
		want := r.From
		if r.State == HostDone || r.State == HostStarted {
			want = c.proposal.Version
		}
		if _, there := b.versions[want]; ok && there && r.State != HostSkipped && version != want {
			b.t.Errorf("%s shows v%d, ready is v%d, want v%d by its record %+v", id, version, b.ready.Version, want, r)
		}
	}
	for name, c := range b.rollouts {
		if c.proposal.Version != version || b.ready.Version == version {
			continue
		}
		// A host behind does not know yet that the rollout was replaced, and its record
		// deleted.
		if r := c.record(id); r.State != HostDone && r.State != HostStarted && c.gate.Result != ResultDone {
			b.t.Errorf("%s shows v%d of %s without a turn, its record is %+v", id, version, name, r)
		}
	}
}

// wanted is the version that a host is to use, when nothing moves.
func (b *book) wanted(id string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	want := b.recorded(id)
	if _, ok := b.versions[want]; !ok {
		return b.ready.Version // it is gone
	}
	return want
}

// recorded is the version that the records of a host say that it uses.
func (b *book) recorded(id string) int64 {
	if c := b.rollouts[b.current]; b.current != "" && !c.proposal.Dry {
		for _, name := range append([]string{b.current}, c.proposal.Replaces...) {
			r, ok := b.rollouts[name].hosts[id]
			switch {
			case !ok, r.State == HostSkipped: // as without a record
			case r.State == HostDone || r.State == HostStarted && name == b.current:
				return b.rollouts[name].proposal.Version
			default:
				return r.From
			}
		}
		return b.ready.Version
	}
	if c := b.rollouts[b.ready.Rollout]; c != nil && b.ready.Rollout != "" {
		if r, ok := c.hosts[id]; ok && r.State == HostFailed && r.Version == b.ready.Version {
			return r.From
		}
	}
	return b.ready.Version
}

// phase is that of a rollout that will not go on by itself; empty: it will.
func (b *book) phase(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.rollouts[name]
	if c == nil {
		return "unknown"
	}
	s := State{Proposal: c.proposal, Gate: c.gate}
	switch phase := s.Phase(); phase {
	case PhaseVoting, PhaseRolling:
		return ""
	default:
		return phase
	}
}

// openNow is the open rollout; empty: none.
func (b *book) openNow() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// notify is the book in words.
func (b *book) notify() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.words()
}

func (b *book) words() string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(b.rollouts)) {
		c := b.rollouts[name]
		lines = append(lines, fmt.Sprintf("%s v%d of v%d replaces %v: %s\n  called %v", name, c.proposal.Version, c.proposal.Previous, c.proposal.Replaces, encode(c.gate), c.called))
		for _, id := range slices.Sorted(maps.Keys(c.hosts)) {
			lines = append(lines, fmt.Sprintf("  %s %s", id, encode(c.hosts[id])))
		}
	}
	return fmt.Sprintf("ready v%d of %q, open %q, live %v\n%s", b.ready.Version, b.ready.Rollout, b.current, b.live, strings.Join(lines, "\n"))
}

// active reports whether the host takes up one of the K places.
func (r HostRecord) active() bool { return r.State == HostGranted || r.State == HostStarted }
