package recipe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// asProcess is the environment variable that makes this test binary a client process,
// which takes the orders of a peer (see kazoo_peer.py) with this library.
const asProcess = "RECIPE_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		(&process{servers: strings.Split(os.Args[1], ",")}).serve()
		return
	}
	zktest.RunMain(m)
}

// startProcess starts such a process. It ends with the test.
func startProcess(tb testing.TB, addr string) *peers.Peer {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return peers.Start(tb, "coreutils", "env", asProcess+"=1", self, addr)
}

const (
	// processTimeout is short enough that holds are lost while the leader is paused.
	processTimeout = 12 * time.Second
	// orderLimit bounds an order of a process. One that takes longer has failed.
	orderLimit = time.Minute
)

type process struct {
	servers []string
	s       *session.Session
	hold    holding
	mark    *oracle
	leave   func(ctx context.Context) error // of a double barrier
}

func (p *process) serve() {
	p.dial()
	say("ready")
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		if p.s.Context().Err() != nil {
			p.dial()
		}
		ctx, cancel := context.WithTimeout(context.Background(), orderLimit)
		words := append(strings.Fields(sc.Text()), "", "") // the last ones may be missing
		answer, err := p.order(ctx, words)
		cancel()
		if err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", sc.Text(), err)
			answer = "failed " + words[1]
			if errors.Is(err, errTwo) && !errors.Is(err, context.Canceled) { // and the hold is not lost
				answer = "VIOLATION " + err.Error()
			}
			_ = p.s.Close() // nothing of what failed stays
		}
		say(answer)
	}
}

func say(line string) { _, _ = os.Stdout.WriteString(line + "\n") }

func (p *process) dial() {
	for {
		s, err := session.Dial(context.Background(), session.Config{Servers: p.servers, Timeout: processTimeout})
		if err == nil {
			p.s = s
			return
		}
		_, _ = fmt.Fprintln(os.Stderr, err)
	}
}

func (p *process) order(ctx context.Context, w []string) (string, error) {
	kind, path := w[1], w[2]
	switch w[0] {
	case "acquire":
		return p.acquire(ctx, kind, path, w[3])
	case "release":
		return p.release(ctx, kind)
	case "put":
		return "put", recipe.NewQueue(p.s, recipe.QueueConfig{Path: path}).Put(ctx, []byte(w[3]))
	case "get":
		body, err := recipe.NewQueue(p.s, recipe.QueueConfig{Path: path}).TryTake(ctx)
		if errors.Is(err, recipe.ErrEmpty) {
			err = nil
		}
		return strings.TrimSpace("got " + string(body)), err
	case "decide":
		return p.decide(ctx, kind, path)
	}
	return "", fmt.Errorf("unknown order %s", w[0])
}

func (p *process) acquire(ctx context.Context, kind, path, file string) (string, error) {
	var h holding
	var err error
	switch kind {
	case "lock", "kazoo-lock":
		dialect := map[string]string{"lock": recipe.Curator, "kazoo-lock": recipe.Kazoo}[kind]
		h, err = recipe.NewLock(p.s, recipe.LockConfig{Path: path, Dialect: dialect}).Acquire(ctx)
	case "write":
		h, err = recipe.NewRWLock(p.s, recipe.LockConfig{Path: path}).Lock(ctx)
	case "semaphore":
		h, err = recipe.NewSemaphore(p.s, recipe.SemaphoreConfig{Path: path, K: permits}).Acquire(ctx)
	case "latch", "election":
		dialect := map[string]string{"latch": recipe.Curator, "election": recipe.Kazoo}[kind]
		h, err = lead(ctx, p.s, path, dialect)
	case "double":
		b := recipe.NewDoubleBarrier(p.s, recipe.DoubleBarrierConfig{Path: path, N: 2, ID: strconv.Itoa(os.Getpid())})
		inside, enterErr := b.Enter(ctx)
		if enterErr != nil {
			return "", enterErr
		}
		p.leave = func(ctx context.Context) error { return b.Leave(ctx, inside) }
		return "held double", nil
	default:
		err = fmt.Errorf("unknown kind %s", kind)
	}
	if err != nil {
		return "", err
	}
	fence := int64(0)
	if f, ok := h.(interface{ Fence() int64 }); ok && kind != "semaphore" {
		fence = f.Fence()
	}
	slots := 1
	if kind == "semaphore" {
		slots = permits
	}
	mark, err := enter(file, slots, fence)
	if err != nil {
		return "", errors.Join(err, h.Context().Err())
	}
	context.AfterFunc(h.Context(), mark.leave)
	p.hold, p.mark = h, mark
	return "held " + kind, nil
}

func (p *process) release(ctx context.Context, kind string) (string, error) {
	if p.leave != nil {
		leave := p.leave
		p.leave = nil
		return "released " + kind, leave(ctx)
	}
	h := p.hold
	p.hold = nil
	if h == nil || ended(h) {
		return "lost " + kind, nil
	}
	p.mark.leave()
	return "released " + kind, h.Release(ctx)
}

func ended(h holding) bool { return h.Context().Err() != nil }

// decide takes part in a transaction: as its coordinator, or as a site.
func (p *process) decide(ctx context.Context, as, path string) (string, error) {
	x := recipe.NewTxn(p.s, path)
	decide := x.AwaitOrAbort
	switch as {
	case "propose":
		err := x.Propose(ctx, recipe.Proposal{Sites: []string{"1", "2"}, Deadline: time.Now().Add(orderLimit / 2)})
		if errors.Is(err, session.ErrNodeExists) { // it did so before it failed
			err = nil
		}
		return "proposed", err
	case "coordinate":
		decide = x.Coordinate
	default:
		_, err := x.Vote(ctx, as, recipe.Commit)
		if err != nil && !errors.Is(err, recipe.ErrDecided) { // after its first try
			return "", err
		}
	}
	d, err := decide(ctx)
	return fmt.Sprint("decided ", d), err
}

// termHold is a term of an election as a hold.
type termHold struct {
	term context.Context
	end  func() error
	id   int64
}

func (h *termHold) Context() context.Context        { return h.term }
func (h *termHold) Release(_ context.Context) error { return h.end() }
func (h *termHold) Fence() int64                    { return h.id }

// lead returns when it leads. The term ends with Release.
func lead(ctx context.Context, s *session.Session, path, dialect string) (*termHold, error) {
	own, stop := context.WithCancel(context.Background())
	leads, ended := make(chan *termHold), make(chan error, 1)
	c := election.New(election.Config{Name: "e", Path: path, ID: strconv.Itoa(os.Getpid()), Dialect: dialect, Once: true, Lead: func(term context.Context, t election.Term) {
		h := &termHold{term: term, id: t.ID}
		select {
		case leads <- h:
			<-term.Done()
		case <-term.Done():
		}
	}})
	go func() { ended <- c.Run(own, s, nil) }()
	select {
	case h := <-leads:
		h.end = func() error { stop(); return <-ended }
		return h, nil
	case err := <-ended:
		stop()
		return nil, errors.Join(err, errors.New("the candidate never led"))
	case <-ctx.Done():
		stop()
		<-ended
		return nil, ctx.Err()
	}
}

// errTwo says that another holds, or has held since.
var errTwo = errors.New("another holds")

// oracle is a file that knows without ZooKeeper who holds: its holders lock it, and
// write their fence into it. The peers of other libraries do the same without fences.
type oracle struct{ f *os.File }

// enter fails when all slots of the oracle are taken, or a fence does not grow. No fence
// is 0.
func enter(file string, slots int, fence int64) (*oracle, error) {
	for i := range slots {
		f, err := os.OpenFile(file+strconv.Itoa(i), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}) != nil {
			_ = f.Close()
			continue
		}
		last := int64(0)
		_, _ = fmt.Fscan(f, &last) // a new file has none
		if fence > 0 {
			if fence <= last {
				return &oracle{f}, fmt.Errorf("%w: fence %d after %d", errTwo, fence, last)
			}
			if _, err := f.WriteAt(fmt.Appendf(nil, "%d\n", fence), 0); err != nil {
				return nil, err
			}
		}
		return &oracle{f}, nil
	}
	return nil, fmt.Errorf("%w: all %d slots are taken", errTwo, slots)
}

// leave may be called more than once.
func (o *oracle) leave() { _ = o.f.Close() }
