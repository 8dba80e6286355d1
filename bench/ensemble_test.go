package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest"
)

// agentLog is what all agents of a crew log.
type agentLog struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *agentLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// entry is what the test reads of a line.
type entry struct {
	Message string `json:"msg"`
	Host    string `json:"host"`
	Rollout string `json:"rollout"`
	Zxid    int64  `json:"zxid"`
}

// take returns the lines since the last call.
func (l *agentLog) take(t *testing.T) []entry {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []entry
	for line := range strings.Lines(l.text.String()) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		list = append(list, e)
	}
	l.text.Reset()
	return list
}

// TestRollout_LeaderOfTheEnsembleDies: complete agents take a version by a rollout,
// first in peace, and then while the leader of three servers dies in the middle. All
// change, at most K at a time, and a host sends nine requests at most. What a lost
// connection costs comes on top.
func TestRollout_LeaderOfTheEnsembleDies(t *testing.T) { //nolint:tparallel // The parts share the servers.
	t.Parallel()
	ensemble := zktest.StartEnsemble(t, 3)
	for _, n := range []int{1, 3, 20} {
		t.Run(fmt.Sprintf("%d hosts", n), func(t *testing.T) { leaderDies(t, ensemble, n) })
	}
}

func leaderDies(t *testing.T, ensemble *zktest.Ensemble, n int) {
	ctx := t.Context()
	log := &agentLog{}
	e := &env{
		cfg: Config{Quick: true}, tb: t, server: ensemble.Servers[0], others: ensemble.Addrs()[1:], dir: t.TempDir(),
		coordinators: max(1, n/5), log: slog.New(slog.NewJSONHandler(log, nil)),
	}
	var err error
	if e.writer, err = e.dial(ctx, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.writer.Close() }()
	tree, err := e.newTree(ctx)
	if err != nil {
		t.Fatal(err)
	}
	crew, err := e.agentCrew(ctx, tree.root, n)
	if err != nil {
		t.Fatal(err)
	}
	defer crew.stop()
	r := &ensembleRun{e: e, tree: tree, crew: crew, log: log, hosts: n, parallel: max(1, n/5)}
	r.rollOut(t, "in peace", func() {})
	r.rollOut(t, "without the leader", func() {
		if n > 1 { // else nothing is left after the first file
			if _, err := await(ctx, crew.files.c); err != nil {
				t.Fatal(err)
			}
		}
		leader := ensemble.Leader(t)
		leader.Kill(t)
		t.Cleanup(func() {
			ensemble.Restart(t, leader)
			ensemble.AwaitServing(t)
		})
	})
}

// ensembleRun is a crew that takes one version after another.
type ensembleRun struct {
	e               *env
	tree            *tree
	crew            *crew
	log             *agentLog
	hosts, parallel int
}

// rollOut proposes a version, disturbs, and checks what the hosts did and asked for.
func (r *ensembleRun) rollOut(t *testing.T, value string, disturb func()) {
	t.Helper()
	ctx := t.Context()
	for range min(len(r.crew.files.c), cap(r.crew.files.c)) { // files of the rollout before
		<-r.crew.files.c
	}
	r.reported(t)
	version, err := r.tree.prepare(ctx, value)
	if err != nil {
		t.Fatal(err)
	}
	before := make([]count, r.hosts)
	for i, m := range r.crew.each {
		before[i] = m.now()
	}
	r.log.take(t)
	began := time.Now()
	name, err := fleet.Propose(ctx, r.e.writer, fleet.Request{
		Root: r.tree.root, Version: version.Version, Digest: version.Digest, Delta: version.Delta, Base: version.Previous,
		Strategy: fleet.Strategy{Parallel: r.parallel},
	})
	if err != nil {
		t.Fatal(err)
	}
	disturb()
	if err := r.e.done(ctx, r.tree.root, name); err != nil {
		t.Fatal(err)
	}
	r.reported(t)
	// A host looks now and then without an event, see docs/scale.md. Of a long rollout it
	// says first that it knows the version.
	looks := int64(time.Since(began)/(20*time.Second))*5 + int64(min(time.Since(began)/(8*time.Second), 1))
	lines := r.log.take(t)
	r.atMost(t, name, lines)
	lost := map[string]int64{}
	for _, line := range lines {
		if line.Message == "session connected" {
			lost[line.Host]++
		}
	}
	all, most := int64(0), int64(0)
	for i, m := range r.crew.each {
		host := fmt.Sprintf("host-%03d", i)
		got := m.now().since(before[i]).requests
		t.Logf("%s: %s: %d requests, %d connections lost", value, host, got, lost[host])
		if i < r.e.coordinators {
			continue
		}
		// The host sets its watches again, asks what became of its writes, reads what
		// it had watched, and says that it was away.
		bound := 9 + 9*lost[host] + looks
		all, most = all+got, most+bound
		if got > bound+3 { // a grant may cross with a look
			t.Errorf("%s: %s sent %d requests, want at most %d", value, host, got, bound)
		}
	}
	if r.hosts == 20 && all > most+int64(r.hosts)/2 { // such a look is rare
		t.Errorf("%s: %d hosts sent %d requests, want at most %d", value, r.hosts-r.e.coordinators, all, most)
	}
}

// reported waits until every host has written what it uses.
func (r *ensembleRun) reported(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for deadline := time.Now().Add(limit); ; {
		ready, _, err := trees.ReadReady(ctx, r.e.writer, r.tree.root)
		if err != nil {
			t.Fatal(err)
		}
		there, err := fleet.Subscribers(ctx, r.e.writer, r.tree.root)
		if err != nil {
			t.Fatal(err)
		}
		agents, err := fleet.Agents(ctx, r.e.writer)
		if err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, s := range there {
			if s.Version == ready.Version {
				said++
			}
		}
		for _, a := range agents {
			if use := a.UseOf(r.tree.root); use.Known == ready.Version && use.Accepted == ready.Version && a.Health == fleet.OK {
				said++
			}
		}
		if said == 2*r.hosts {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d reports name version %d: %+v, %+v", said, 2*r.hosts, ready.Version, there, agents)
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.crew.quiet(ctx); err != nil {
		t.Fatal(err)
	}
}

// atMost checks how many hosts were at it at one time, in the order of the zxids.
func (r *ensembleRun) atMost(t *testing.T, name string, lines []entry) {
	t.Helper()
	state, err := fleet.Read(t.Context(), r.e.writer, r.tree.root, name)
	if err != nil {
		t.Fatal(err)
	}
	began := map[string]int64{} // of hosts whose server could answer them
	for _, line := range lines {
		if line.Message == "rollout turn started" && line.Rollout == name {
			began[line.Host] = line.Zxid
		}
	}
	if len(state.Hosts) != r.hosts || len(began) == 0 {
		t.Errorf("%s: %d of %d hosts have a record, %d have logged their turn", name, len(state.Hosts), r.hosts, len(began))
	}
	for id, record := range state.Hosts {
		if record.State != fleet.HostDone {
			t.Errorf("%s: %s is %s, want done", name, id, record.State)
		}
	}
	for _, at := range began {
		active := 0
		for id := range maps.Keys(began) {
			if began[id] <= at && at < state.At[id].Zxid {
				active++
			}
		}
		if active > r.parallel {
			t.Errorf("%s: %d hosts have their turn at zxid %#x, want at most %d", name, active, at, r.parallel)
		}
	}
}
