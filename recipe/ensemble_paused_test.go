package recipe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/history"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// permits is how many permits the semaphores of processes have.
const permits = 2

// The servers of a real ensemble are paused one by one, the leader among them for longer
// than the others wait for it, under twenty processes: ours, Curator's and kazoo's. No two
// hold at a time, by files that they lock and by fences that grow in them, nothing that
// was put is lost or taken twice, and nobody is inside a double barrier alone. PAUSED
// is how long it lasts, a minute by default.
func TestEnsemble_Paused(t *testing.T) {
	testhelp.OnlyAll(t, "it pauses real servers for a minute")
	e := zktest.StartEnsemble(t, 3)
	lasts := time.Minute
	if d, err := time.ParseDuration(os.Getenv("PAUSED")); err == nil {
		lasts = d
	}
	p := &paused{addr: e.ConnectString(), files: t.TempDir()}
	p.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	p.play(ctx, t)
	leader := true
	for ; ctx.Err() == nil; leader = !leader {
		victim, d := e.Leader(t), 14*time.Second // the others wait for 10 s
		if !leader {
			followers := e.Followers(t)
			victim, d = followers[rand.IntN(len(followers))], 5*time.Second
		}
		victim.Freeze(t)
		wait(ctx, d)
		victim.Resume(t)
		wait(ctx, 5*time.Second)
	}
	p.all.Wait()
	p.judge(t)
}

// wait waits, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// paused is all games of processes on one ensemble.
type paused struct {
	addr, files string
	games       []*contest
	queue       []*peers.Peer
	pairs       [][2]*peers.Peer // of double barriers, ours first
	sites       []*peers.Peer    // of transactions, with the coordinator first

	all sync.WaitGroup
	mu  sync.Mutex // guards what follows
	n   map[string]int
	put history.Log
	// bodies are what is in the queue, or was taken, as far as the answers say.
	bodies, taken map[string]int
	unsure        int
}

// contest is one path that processes hold in turn.
type contest struct {
	kind, path string
	permits    int
	who        []*peers.Peer
	log        history.Log
}

// start starts the processes.
func (p *paused) start(t *testing.T) {
	t.Helper()
	p.n, p.bodies, p.taken = map[string]int{}, map[string]int{}, map[string]int{}
	var starting sync.WaitGroup
	begin := func(to **peers.Peer, how func(testing.TB, string) *peers.Peer) {
		starting.Go(func() { *to = how(t, p.addr) })
	}
	curator := func(tb testing.TB, addr string) *peers.Peer { return peers.Curator(tb, addr, peers.Quick) }
	for _, c := range []struct {
		kind    string
		permits int
		theirs  func(testing.TB, string) *peers.Peer
	}{
		{"lock", 1, curator},
		{"kazoo-lock", 1, peers.Kazoo},
		{"write", 1, curator},
		{"semaphore", permits, startProcess},
		{"election", 1, peers.Kazoo},
	} {
		game := &contest{kind: c.kind, path: "/" + c.kind, permits: c.permits, who: make([]*peers.Peer, 3)}
		p.games = append(p.games, game)
		begin(&game.who[0], startProcess)
		begin(&game.who[1], startProcess)
		begin(&game.who[2], c.theirs)
	}
	p.queue, p.sites, p.pairs = make([]*peers.Peer, 2), make([]*peers.Peer, 3), make([][2]*peers.Peer, 1)
	for i := range p.queue {
		begin(&p.queue[i], startProcess)
	}
	for i := range p.sites {
		begin(&p.sites[i], startProcess)
	}
	begin(&p.pairs[0][0], startProcess)
	begin(&p.pairs[0][1], curator) // kazoo's waits for a watch that its client drops with the connection
	starting.Wait()
}

// play lets all play until ctx ends.
func (p *paused) play(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, game := range p.games {
		for id, who := range game.who {
			p.all.Go(func() { p.contend(ctx, t, game, id, who) })
		}
	}
	for id, who := range p.queue {
		p.all.Go(func() { p.putAndTake(ctx, t, id, who) })
	}
	for _, pair := range p.pairs {
		p.all.Go(func() { p.enterAndLeave(ctx, t, pair) })
	}
	p.all.Go(func() { p.decide(ctx, t) })
}

// ask gives an order and returns the first word of the answer, and the rest.
func (p *paused) ask(t *testing.T, who *peers.Peer, format string, args ...any) (string, string) {
	t.Helper()
	who.Tell(t, format, args...)
	// kazoo's recipes take their time over an election of the servers.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	verb, rest, _ := strings.Cut(who.Line(ctx, t), " ")
	p.mu.Lock()
	p.n[verb]++
	p.mu.Unlock()
	if verb == "VIOLATION" {
		t.Errorf("%s: %s", fmt.Sprintf(format, args...), rest)
	}
	return verb, rest
}

// contend holds and releases until ctx ends.
func (p *paused) contend(ctx context.Context, t *testing.T, game *contest, id int, who *peers.Peer) {
	kind := strings.TrimPrefix(game.kind, "kazoo-")
	if id < 2 {
		kind = game.kind
	}
	for ctx.Err() == nil {
		call := game.log.Now()
		if verb, _ := p.ask(t, who, "acquire %s %s %s %d", kind, game.path, filepath.Join(p.files, game.kind), game.permits); verb != "held" {
			continue
		}
		game.log.Add(id, call, +1, nil)
		held := game.log.Now()
		wait(ctx, time.Duration(rand.IntN(200))*time.Millisecond)
		call = game.log.Now()
		if verb, _ := p.ask(t, who, "release %s", kind); verb != "released" {
			call = held // it may have ended at any time
		}
		game.log.Add(id, call, -1, nil)
	}
}

// putAndTake puts and takes until ctx ends, and takes the rest. An order that fails may
// have been carried out.
func (p *paused) putAndTake(ctx context.Context, t *testing.T, id int, who *peers.Peer) {
	for n := 0; ; n++ {
		if ctx.Err() == nil && n%2 == 0 && n < 90_000 {
			// As long as the model wants it: the numbers have three digits.
			body := fmt.Sprintf("%c%s", 'a'+id, strconv.FormatInt(36*36+int64(n/2), 36))
			call := p.put.Now()
			verb, _ := p.ask(t, who, "put queue /queue %s", body)
			p.note(verb == "put", func() { p.bodies[body]++ })
			if verb == "put" {
				p.put.Add(id, call, history.QueueOp{Put: true, Body: body}, nil)
			}
			continue
		}
		call := p.put.Now()
		verb, body := p.ask(t, who, "get queue /queue")
		p.note(verb == "got", func() {
			if body != "" {
				p.taken[body]++
			}
		})
		if verb == "got" && body != "" {
			p.put.Add(id, call, history.QueueOp{Body: body}, nil)
		}
		if verb == "got" && body == "" && ctx.Err() != nil {
			return
		}
	}
}

// note does what an order that succeeded calls for, or counts one that may have been
// carried out.
func (p *paused) note(sure bool, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sure {
		do()
	} else {
		p.unsure++
	}
}

// enterAndLeave has two enter and leave one barrier after another.
func (p *paused) enterAndLeave(ctx context.Context, t *testing.T, pair [2]*peers.Peer) {
	for round := 0; ctx.Err() == nil; round++ {
		for _, order := range []string{fmt.Sprintf("acquire double /double/%d", round), "release double"} {
			if !p.inStep(ctx, t, pair, order) {
				break
			}
		}
	}
}

// inStep gives both the order, one of them later, and checks that neither is through
// before. One that fails tries again until the other is through. It returns whether
// none failed; otherwise both are outside.
func (p *paused) inStep(ctx context.Context, t *testing.T, pair [2]*peers.Peer, order string) bool {
	var both sync.WaitGroup
	var mu sync.Mutex // guards what follows
	told, failed, early := 0, false, ""
	var through [2]bool
	late := rand.IntN(2)
	for i, who := range pair {
		both.Go(func() {
			if i == late {
				wait(ctx, time.Duration(rand.IntN(300))*time.Millisecond)
			}
			for over := false; !over; {
				mu.Lock()
				told |= 1 << i
				mu.Unlock()
				verb, _ := p.ask(t, who, "%s", order)
				mu.Lock()
				through[i] = verb == "held" || verb == "released"
				// Curator's member takes any event, also of its connection, for the leave of the last other.
				if through[i] && told != 3 && (i == 0 || verb == "held") {
					early = fmt.Sprintf("%s by %d, who %s", order, i, verb)
				}
				failed = failed || !through[i]
				over = through[i] || through[1-i] || order == "release double"
				mu.Unlock()
			}
		})
	}
	both.Wait()
	if early != "" && !failed {
		t.Errorf("%s: before the other came", early)
	}
	for i, who := range pair {
		if failed && through[i] && order != "release double" {
			p.ask(t, who, "release double")
		}
	}
	return !failed
}

// decide has three decide one transaction after another, and all alike.
func (p *paused) decide(ctx context.Context, t *testing.T) {
	for n := 0; ctx.Err() == nil; n++ {
		for verb := ""; verb != "proposed"; {
			verb, _ = p.ask(t, p.sites[0], "decide propose /txn-%d", n)
		}
		decisions := make([]string, len(p.sites))
		var all sync.WaitGroup
		for i, who := range p.sites {
			as := []string{"coordinate", "1", "2"}[i]
			all.Go(func() {
				for verb := ""; verb != "decided"; {
					verb, decisions[i] = p.ask(t, who, "decide %s /txn-%d", as, n)
				}
			})
		}
		all.Wait()
		slices.Sort(decisions)
		if len(slices.Compact(decisions)) != 1 {
			t.Errorf("transaction %d: the decisions are %v", n, decisions)
		}
	}
}

// judge judges what happened.
func (p *paused) judge(t *testing.T) {
	t.Helper()
	for _, game := range p.games {
		t.Log(game.kind)
		game.log.Check(t, history.Permits(game.permits), 20)
	}
	missing := 0
	for body, n := range p.taken {
		if n > 1 {
			t.Errorf("%s was taken %d times", body, n)
		}
	}
	for body := range p.bodies {
		if p.taken[body] == 0 {
			missing++
		}
	}
	if missing > p.unsure {
		t.Errorf("%d items are lost, and %d orders failed", missing, p.unsure)
	}
	if p.unsure == 0 {
		p.put.Check(t, history.Queue, 20)
	}
	t.Logf("answers: %v; %d items taken, %d lost by %d orders that failed", p.n, len(p.taken), missing, p.unsure)
}
