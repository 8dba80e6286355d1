package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestSteps kills the publisher, and each host in turn, at the requests that it
// makes in the course of one rollout: after each write, whose answer is lost,
// and before requests. One of the hosts is the coordinator. What was killed is
// started again. The invariants are those of TestSeeds.
//
// Between two writes nothing changes in ZooKeeper, so that usually the process
// dies before some of the requests only. A quick run kills after other writes each
// day, and leaves out one host of two that do the same.
func TestSteps(t *testing.T) {
	stride, victims := testhelp.Rounds(32, 4), []string{"publisher", "h0", "h2"}
	firstWrite, strideOfWrites := testhelp.Steps()
	if testhelp.All() {
		victims = append(victims, "h1")
	}
	// Programs in virtual time are cheaper on one processor, and when rubbish is
	// collected seldom.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			var all *steps
			inSteps(t, victim, 0, 0, func(s *steps) { all = s })
			requests, writes := all.mortal.counts()
			if requests < 10 || writes < 3 {
				t.Fatalf("%d requests, %d writes: that is no rollout", requests, writes)
			}
			t.Logf("%d requests, %d of them writes", requests, writes)
			for n := firstWrite; n <= writes && !t.Failed(); n += strideOfWrites {
				inSteps(t, victim, 0, n, nil)
			}
			for n := 1; n <= requests && !t.Failed(); n += stride {
				inSteps(t, victim, n, 0, nil)
			}
		})
	}
}

// steps is one rollout with one victim.
type steps struct {
	*sim
	victim string
	mortal *mortal
}

func inSteps(t *testing.T, victim string, before, after int, see func(*steps)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSteps(t, victim, before, after)
		s.run()
		if t.Failed() {
			t.Errorf("%s was killed before request %d, or after write %d", victim, before, after)
		}
		if see != nil {
			see(s)
		}
	})
}

func newSteps(t *testing.T, victim string, before, after int) *steps {
	t.Helper()
	w := newWorldOf(t, rand.New(rand.NewPCG(1, 2)))
	w.quiet.Store(true) // but for the victim everything is well
	for i := range 3 {
		w.hosts = append(w.hosts, w.host(fmt.Sprintf("h%d", i), "", uint64(i)))
	}
	return &steps{sim: w, victim: victim, mortal: &mortal{server: w.server, killed: func() {}, before: before, after: after}}
}

func (s *steps) run() {
	ctx, cancel := context.WithCancel(s.t.Context())
	desk, err := session.Dial(ctx, session.Config{Servers: []string{"desk:2181"}, Timeout: 20 * time.Second, Dial: s.server.Dial})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.publish(ctx, desk, "one"); err != nil {
		s.t.Fatal(err)
	}
	for _, h := range s.hosts {
		s.wg.Go(func() { s.process(ctx, h) })
	}
	for i := 0; s.subscribers() < len(s.hosts) && i < 600; i++ {
		nap(ctx, 100*time.Millisecond)
	}
	s.propose(ctx, desk)
	s.finish(ctx)
	cancel()
	s.wg.Wait()
	_ = desk.Close()
	s.server.Close()
}

func (s *steps) subscribers() int {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	n := 0
	for _, live := range s.book.live {
		if live {
			n++
		}
	}
	return n
}

// process is a host; the victim's is killed and started again.
func (s *steps) process(ctx context.Context, h *simHost) {
	for h.id == s.victim && ctx.Err() == nil && !s.mortal.isDead() {
		life, kill := context.WithCancel(ctx)
		s.mortal.killed = kill
		h.dial = s.mortal.dial
		h.live(life)
		kill()
		nap(ctx, 3*time.Second)
	}
	h.dial = s.server.Dial
	h.live(ctx)
}

// publish writes a first version, in use at once.
func (s *steps) publish(ctx context.Context, desk *session.Session, word string) (Result, error) {
	return Publish(ctx, desk, s.request(word))
}

func (s *steps) request(word string) PublishConfig {
	return PublishConfig{Path: root, Layout: config.LayoutVersioned, Keys: map[string][]byte{"word": []byte(word)}, Author: "ann", Host: "desk"}
}

// propose is the publisher: it writes a version and opens a rollout. When it
// was killed and no rollout is open, somebody does it again.
func (s *steps) propose(ctx context.Context, desk *session.Session) {
	if s.victim == "publisher" {
		life, kill := context.WithCancel(ctx)
		s.mortal.killed = kill
		doomed, err := session.Dial(life, session.Config{Servers: []string{"laptop:2181"}, Timeout: 6 * time.Second, Dial: s.mortal.dial})
		if err == nil {
			err = s.proposeOnce(life, doomed)
			_ = doomed.Close()
		}
		kill()
		if err != nil && !s.mortal.isDead() {
			s.t.Errorf("propose: %v", err)
		}
	}
	if names, err := Names(ctx, desk, root); err != nil || len(names) > 0 {
		return
	}
	if err := s.proposeOnce(ctx, desk); err != nil {
		s.t.Errorf("propose again: %v", err)
	}
}

func (s *steps) proposeOnce(ctx context.Context, as *session.Session) error {
	r, err := Prepare(ctx, as, s.request("two"))
	if err != nil {
		return err
	}
	_, err = Propose(ctx, as, Request{
		Root: root, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Base: r.Previous,
		Strategy: Strategy{Parallel: 1, Canary: 1, Bake: Duration(2 * time.Second), Grace: Duration(30 * time.Second), VoteTimeout: Duration(30 * time.Second)},
	})
	return err
}
