package zktest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// Every operation of more than one request is cut after each of its requests, and called
// again.

// cutTimeout is the session timeout, in virtual time.
const cutTimeout = 12 * time.Second

// scene is a ZooKeeper in memory, in a bubble of virtual time, with one client that no cut
// concerns.
type scene struct {
	*memzk.Server
	t     *testing.T
	ctx   context.Context //nolint:containedctx // the test's
	other *session.Session
}

func (sc *scene) must(err error) {
	sc.t.Helper()
	if err != nil {
		sc.t.Fatal(err)
	}
}

// dial opens a session. dead, when not nil, ends its network once it is closed.
func (sc *scene) dial(name string, dead <-chan struct{}) *session.Session {
	sc.t.Helper()
	s, err := session.Dial(sc.ctx, session.Config{
		Servers: []string{name + ":2181"}, Timeout: cutTimeout,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			select {
			case <-dead:
				return nil, errors.New("the process is dead")
			default:
				return sc.Dial(ctx, network, addr)
			}
		},
	})
	sc.must(err)
	sc.t.Cleanup(func() { _ = s.Close() })
	return s
}

// free fails the test when a znode below root belongs to a session.
func (sc *scene) free(root string) {
	sc.t.Helper()
	for path, n := range sc.Tree() {
		if strings.HasPrefix(path, root) && n.Stat.EphemeralOwner != 0 && !strings.Contains(path, "-ops/") {
			sc.t.Errorf("left behind: %s", path)
		}
	}
}

// operation is one that takes several requests.
type operation struct {
	name    string
	prepare func(sc *scene)
	// begin comes before the first request that is cut, and returns the operation. After
	// a death it is called again, by the next process.
	begin func(sc *scene, s *session.Session) func(ctx context.Context) error
	// done are errors of an operation that was done before.
	done []error
	// left checks what the document of the operation promises, by another client.
	left func(sc *scene)
}

// cut is where an operation is cut, and how.
type cut struct {
	request int
	before  bool // the request is lost, not its reply
	death   bool // of the process; otherwise its connection is lost
}

// run cuts the operation and calls it again. It reports whether it was cut.
func (op operation) run(t *testing.T, c cut) bool {
	t.Helper()
	hit := false
	synctest.Test(t, func(t *testing.T) {
		z := memzk.New(memzk.Options{TickTime: time.Second})
		t.Cleanup(z.Close)
		sc := &scene{Server: z, t: t, ctx: t.Context()}
		sc.other = sc.dial("other", nil)
		defer func() {
			if t.Failed() {
				t.Logf("cut: %+v", c)
			}
		}()
		if op.prepare != nil {
			op.prepare(sc)
		}
		dead := make(chan struct{})
		victim := sc.dial("victim", dead)
		call := op.begin(sc, victim)
		synctest.Wait()
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		struck, ended := z.LoseReply(memzk.AnyOp, c.request, c.before), make(chan struct{})
		go func() {
			select {
			case <-struck:
				hit = true
				if c.death {
					close(dead)
					kill()
				}
			case <-ended:
			}
		}()
		err := call(ctx)
		synctest.Wait()
		close(ended)
		synctest.Wait()
		z.ClearFaults()
		switch {
		case c.death && hit:
			time.Sleep(3 * cutTimeout) // its session ends
			err = op.begin(sc, sc.dial("next", nil))(t.Context())
		case err != nil && hit:
			err = call(t.Context())
		}
		if err != nil && !slices.ContainsFunc(op.done, func(done error) bool { return errors.Is(err, done) }) {
			t.Errorf("called again: %v", err)
		}
		op.left(sc)
	})
	return hit
}

// Each operation is cut at its first request, its second, and so on, until it ends before
// the cut: by a lost connection, or by the death of the process; before the server has the
// request, or after. It is called again. Then it ends, and leaves what it promises.
func TestOperations_CutAtEveryRequest(t *testing.T) {
	const most = 200
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			first, stride := testhelp.Steps()
			for n := first; n < most; n += stride {
				hit := false
				cuts := []cut{{n, true, false}, {n, false, false}, {n, true, true}, {n, false, true}}
				if !testhelp.All() { // a quick run takes one of the four at each step
					kind := (n + n/stride) % len(cuts)
					cuts = cuts[kind : kind+1]
				}
				for _, c := range cuts {
					hit = op.run(t, c) || hit
					if t.Failed() {
						return
					}
				}
				if !hit {
					t.Logf("%d requests at most", n)
					return
				}
			}
			t.Errorf("it does not end in %d requests", most)
		})
	}
}
