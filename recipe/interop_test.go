package recipe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// peer is another program that uses recipes of its own library on the server.
type peer struct {
	in    io.Writer
	lines chan string
}

// startPeer starts a program that is told what to do by lines; see
// testdata/interop.
func startPeer(t testing.TB, hint, name string, args ...string) *peer {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: %s", name, hint)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, args...)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	p := &peer{in: in, lines: make(chan string, 100)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	p.expect(testContext(t), t, "ready")
	return p
}

func (p *peer) tell(t testing.TB, format string, args ...any) {
	t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	must(t, err)
}

func (p *peer) expect(ctx context.Context, t testing.TB, want string) {
	t.Helper()
	select {
	case got, ok := <-p.lines:
		if !ok || strings.TrimSpace(got) != want {
			t.Fatalf("the peer said %q, want %q", got, want)
		}
	case <-ctx.Done():
		t.Fatalf("the peer did not say %q: %v", want, context.Cause(ctx))
	}
}

// silent fails the test when the peer has said something already.
func (p *peer) silent(t testing.TB) {
	t.Helper()
	select {
	case got := <-p.lines:
		t.Fatalf("the peer said %q while it should wait", got)
	default:
	}
}

const (
	kazooHint = "apt-get install python3-kazoo"
	javaHint  = "apt-get install default-jdk-headless libcurator-recipes-java libcurator-framework-java libzookeeper-java"
)

func startKazoo(t testing.TB, addr string) *peer {
	t.Helper()
	// kazoo comes with Debian's own Python, which need not be the first one.
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	return startPeer(t, kazooHint, python, "testdata/interop/kazoo_peer.py", addr)
}

func startCurator(t testing.TB, addr string) *peer {
	t.Helper()
	var cp []string
	for _, jar := range []string{
		"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute",
		"zookeeper-recipes-lock", "zookeeper-recipes-queue", "guava", "slf4j-api", "slf4j-nop",
		"netty-handler", "netty-transport", "netty-common", "netty-buffer", "netty-codec", "netty-resolver",
	} {
		cp = append(cp, "/usr/share/java/"+jar+".jar")
	}
	if _, err := os.Stat(cp[0]); err != nil {
		t.Fatalf("%s is missing: %s", cp[0], javaHint)
	}
	return startPeer(t, javaHint, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1",
		"-cp", strings.Join(cp, ":"), "testdata/interop/Peer.java", addr)
}

// inTurn holds with the peer first and then with ours, and the other way round.
// contenders is the directory in which they stand in line.
func inTurn(ctx context.Context, t *testing.T, s *session.Session, p *peer, kind, path, contenders string, acquire func(context.Context) (*Hold, error)) {
	t.Helper()
	p.tell(t, "acquire %s %s", kind, path)
	p.expect(ctx, t, "held "+kind)
	got := make(chan *Hold, 1)
	go func() {
		h, err := acquire(ctx)
		if err != nil {
			t.Errorf("acquire: %v", err)
		}
		got <- h
	}()
	awaitChildren(ctx, t, s, contenders, 2)
	select {
	case <-got:
		t.Fatalf("%s: ours is held while the peer's is", kind)
	default:
	}
	p.tell(t, "release %s", kind)
	h := <-got
	p.expect(ctx, t, "released "+kind)
	if h == nil {
		t.FailNow()
	}
	if kind == "writelock" {
		// ZooKeeper's WriteLock waits for ever when its predecessor leaves
		// between its list and its watch, so it is not made to wait for ours.
		must(t, h.Release(ctx))
		return
	}

	p.tell(t, "acquire %s %s", kind, path)
	awaitChildren(ctx, t, s, contenders, 2)
	p.silent(t)
	must(t, h.Release(ctx))
	p.expect(ctx, t, "held "+kind)
	p.tell(t, "release %s", kind)
	p.expect(ctx, t, "released "+kind)
}

// awaitChildren waits until a directory has n children.
func awaitChildren(ctx context.Context, t *testing.T, s *session.Session, path string, n int) {
	t.Helper()
	for {
		names, _, watch, err := s.ChildrenW(ctx, path)
		if errors.Is(err, session.ErrNoNode) {
			_, _, watch, err = s.ExistsW(ctx, path)
		}
		must(t, err)
		if len(names) == n {
			watch.Stop()
			return
		}
		must(t, awaitWatch(ctx, s, watch))
	}
}

func TestInterop_Kazoo(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	p := startKazoo(t, zktest.Shared(t).Addr())
	lock := func(name string) *Lock { return NewLock(s, LockConfig{Path: root + name, Dialect: Kazoo}) }
	rw := func(name string) *RWLock { return NewRWLock(s, LockConfig{Path: root + name, Dialect: Kazoo}) }
	sem := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 1, Dialect: Kazoo})

	inTurn(ctx, t, s, p, "lock", root+"/lock", root+"/lock", lock("/lock").Acquire)
	inTurn(ctx, t, s, p, "write", root+"/rw", root+"/rw", rw("/rw").RLock)
	inTurn(ctx, t, s, p, "read", root+"/rw2", root+"/rw2", rw("/rw2").Lock)
	inTurn(ctx, t, s, p, "election", root+"/election", root+"/election", lock("/election").Acquire)
	doubleBarrier(ctx, t, s, p, root+"/double")
	semaphoreInTurn(ctx, t, s, p, root+"/sem", root+"/sem-__lock__", sem)

	for _, reserve := range []bool{false, true} {
		kind := map[bool]string{false: "queue", true: "locking"}[reserve]
		q := NewPriorityQueue(s, PriorityQueueConfig{Path: root + "/" + kind, Reserve: reserve})
		must(t, q.Put(ctx, []byte("late"), 200))
		must(t, q.Put(ctx, []byte("early"), 5))
		for _, want := range []string{"early", "late"} {
			p.tell(t, "get %s %s/%s", kind, root, kind)
			p.expect(ctx, t, "got "+want)
		}
		p.tell(t, "put %s %s/%s b 9", kind, root, kind)
		p.expect(ctx, t, "put")
		p.tell(t, "put %s %s/%s a 8", kind, root, kind)
		p.expect(ctx, t, "put")
		for _, want := range []string{"a", "b"} {
			body, err := q.Take(ctx)
			must(t, err)
			if string(body) != want {
				t.Errorf("%s: took %q, want %q", kind, body, want)
			}
		}
	}
}

func TestInterop_Curator(t *testing.T) {
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	p := startCurator(t, zktest.Shared(t).Addr())
	lock := func(name string) *Lock { return NewLock(s, LockConfig{Path: root + name}) }
	rw := func(name string) *RWLock { return NewRWLock(s, LockConfig{Path: root + name}) }
	place := func(name, dialect string) func(context.Context) (*Hold, error) {
		line, err := Candidates(root+name, dialect, nil)
		must(t, err)
		return func(ctx context.Context) (*Hold, error) {
			place, err := line.Join(ctx, s, []byte("ours"))
			if err == nil {
				err = place.Wait(ctx)
			}
			if err != nil {
				return nil, err
			}
			return place.Hold(ctx)
		}
	}
	sem := NewSemaphore(s, SemaphoreConfig{Path: root + "/sem", K: 1})

	inTurn(ctx, t, s, p, "lock", root+"/lock", root+"/lock", lock("/lock").Acquire)
	inTurn(ctx, t, s, p, "write", root+"/rw", root+"/rw", rw("/rw").RLock)
	inTurn(ctx, t, s, p, "read", root+"/rw2", root+"/rw2", rw("/rw2").Lock)
	inTurn(ctx, t, s, p, "latch", root+"/latch", root+"/latch", place("/latch", Curator))
	inTurn(ctx, t, s, p, "selector", root+"/selector", root+"/selector", place("/selector", CuratorSelector))
	inTurn(ctx, t, s, p, "writelock", root+"/writelock", root+"/writelock", lock("/writelock").Acquire)
	doubleBarrier(ctx, t, s, p, root+"/double")
	semaphoreInTurn(ctx, t, s, p, root+"/sem", root+"/sem/leases", sem)

	for _, kind := range []string{"simple", "zookeeper"} {
		q := NewQueue(s, QueueConfig{Path: root + "/" + kind})
		must(t, q.Put(ctx, []byte("one")))
		must(t, q.Put(ctx, []byte("two")))
		for _, want := range []string{"one", "two"} {
			p.tell(t, "get %s %s/%s", kind, root, kind)
			p.expect(ctx, t, "got "+want)
		}
		p.tell(t, "put %s %s/%s three", kind, root, kind)
		p.expect(ctx, t, "put")
		body, err := q.Take(ctx)
		must(t, err)
		if string(body) != "three" {
			t.Errorf("%s: took %q, want three", kind, body)
		}
	}
}

// doubleBarrier enters and leaves together with the peer, in both orders.
func doubleBarrier(ctx context.Context, t *testing.T, s *session.Session, p *peer, path string) {
	t.Helper()
	for round, oursFirst := range []bool{true, false} {
		path := fmt.Sprintf("%s/%d", path, round)
		d := NewDoubleBarrier(s, DoubleBarrierConfig{Path: path, N: 2})
		entered, left := make(chan *Hold, 1), make(chan error, 1)
		enter := func() {
			h, err := d.Enter(ctx)
			if err != nil {
				t.Errorf("enter: %v", err)
			}
			entered <- h
		}
		leave := func(h *Hold) { left <- d.Leave(ctx, h) }
		if oursFirst {
			go enter()
			awaitChildren(ctx, t, s, path, 1)
		}
		p.tell(t, "acquire double %s", path)
		if !oursFirst {
			awaitChildren(ctx, t, s, path, 1)
			p.silent(t)
			go enter()
		}
		h := <-entered
		p.expect(ctx, t, "held double")
		if h == nil {
			t.FailNow()
		}
		if oursFirst {
			go leave(h)
			p.tell(t, "release double")
		} else {
			p.tell(t, "release double")
			go leave(h)
		}
		must(t, <-left)
		p.expect(ctx, t, "released double")
	}
}

// semaphoreInTurn is inTurn for semaphores, whose waiters do not all stand in
// one directory.
func semaphoreInTurn(ctx context.Context, t *testing.T, s *session.Session, p *peer, path, waiters string, sem *Semaphore) {
	t.Helper()
	n := map[bool]int{true: 1, false: 2}[strings.HasSuffix(waiters, "__lock__")]
	h, err := sem.Acquire(ctx)
	must(t, err)
	p.tell(t, "acquire semaphore %s", path)
	awaitChildren(ctx, t, s, waiters, n)
	p.silent(t)
	must(t, h.Release(ctx))
	p.expect(ctx, t, "held semaphore")
	if _, err := sem.TryAcquire(ctx); !errors.Is(err, ErrHeld) {
		t.Errorf("the peer has the permit: got %v, want ErrHeld", err)
	}
	p.tell(t, "release semaphore")
	p.expect(ctx, t, "released semaphore")
	h, err = sem.TryAcquire(ctx)
	must(t, err)
	must(t, h.Release(ctx))
}
