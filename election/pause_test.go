package election

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// pausedLeader is set, to the server's address and the root, in the environment
// of a process of this test that is a candidate and nothing else.
const pausedLeader = "ELECTION_TEST_PAUSED_LEADER"

// A leader that is stopped for longer than its session lives, and then goes on,
// writes nothing any more: its lease forbids it, and the fence stops what it had
// decided before. It says that its term is over.
func TestPauseClientSIGSTOP(t *testing.T) {
	if env := os.Getenv(pausedLeader); env != "" {
		leadUntilTold(t, env)
		return
	}
	ctx := testContext(t)
	server, root := zktest.Shared(t).Addr(), zktest.Root(t)
	s := dialAddr(ctx, t, server)
	for _, path := range []string{root + "/e", root + "/acts"} {
		_, _, err := s.Create(ctx, path, nil, session.Persistent)
		must(t, err)
	}
	child, lines := startPausedLeader(ctx, t, server+root)
	first := lineOf(ctx, t, lines, "leads ")
	lineOf(ctx, t, lines, "acted")

	b := run(t, s, Config{Name: "e", Path: root + "/e", ID: "b"})
	must(t, child.Process.Signal(syscall.SIGSTOP))
	second := recv(ctx, t, b.terms)
	ours := strconv.FormatInt(second.ID, 10)
	for err := session.ErrUnknown; err != nil; { // a lost reply is no answer
		if _, err = s.Multi(ctx, second.Guard(), session.SetOp(root+"/acts", []byte(ours), -1)); !errors.Is(err, session.ErrUnknown) {
			must(t, err)
		}
	}
	must(t, child.Process.Signal(syscall.SIGCONT))
	if why := lineOf(ctx, t, lines, "ended "); why != "as it should" {
		t.Errorf("the paused leader's term ended with %q", why)
	}
	for range 100 {
		data, _, err := s.Get(ctx, root+"/acts")
		must(t, err)
		if string(data) != ours {
			t.Fatalf("term %s acted after term %s had begun; the first was %s", data, ours, first)
		}
	}
	must(t, b.stop())
}

// startPausedLeader starts the process that will be stopped, and returns what it
// says.
func startPausedLeader(ctx context.Context, t *testing.T, env string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPauseClientSIGSTOP$", "-test.v=false")
	cmd.Env = append(os.Environ(), pausedLeader+"="+env)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // its end tells the process to end
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := make(chan string, 10_000)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		for range lines {
		}
		_ = cmd.Wait()
	})
	return cmd, lines
}

// lineOf returns the rest of the next line that begins so.
func lineOf(ctx context.Context, t *testing.T, lines <-chan string, begin string) string {
	t.Helper()
	for {
		select {
		case line, ok := <-lines:
			if rest, found := strings.CutPrefix(line, begin); found {
				return rest
			}
			if !ok {
				t.Fatalf("the process ended; nothing began with %q", begin)
			}
		case <-ctx.Done():
			t.Fatalf("nothing began with %q: %v", begin, context.Cause(ctx))
		}
	}
}

// leadUntilTold is the process that is stopped: a candidate that acts as fast as
// it can while it may, until its standard input ends.
func leadUntilTold(t *testing.T, env string) {
	addr, root, _ := strings.Cut(env, "/")
	root = "/" + root
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_, _ = os.Stdin.Read(make([]byte, 1))
	}()
	c := New(Config{Name: "e", Path: root + "/e", ID: "a", Lead: func(ctx context.Context, term Term) {
		_, _ = fmt.Fprintln(os.Stdout, "leads", term.ID)
		for reported := false; term.Held() && ctx.Err() == nil; {
			_, err := term.Session.Multi(ctx, term.Guard(), session.SetOp(root+"/acts", strconv.AppendInt(nil, term.ID, 10), -1))
			if err == nil && !reported {
				reported = true
				_, _ = fmt.Fprintln(os.Stdout, "acted")
			}
		}
		<-ctx.Done()
		why := context.Cause(ctx)
		for _, known := range []error{session.ErrSuspended, session.ErrExpired, recipe.ErrLost} {
			if errors.Is(why, known) {
				_, _ = fmt.Fprintln(os.Stdout, "ended as it should")
				return
			}
		}
		_, _ = fmt.Fprintln(os.Stdout, "ended", why)
	}})
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{addr}, Timeout: 5 * time.Second})
		if err != nil {
			continue
		}
		_ = c.Run(ctx, s, nil)
		_ = s.Close()
	}
}

func dialAddr(ctx context.Context, t *testing.T, addr string) *session.Session {
	t.Helper()
	s, err := session.Dial(ctx, session.Config{Servers: []string{addr}, Timeout: time.Minute})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
