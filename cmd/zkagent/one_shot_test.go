package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// exitOf is the exit code of a command that has ended.
func exitOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// shown waits until what a command prints has a text, or has it no longer.
func shown(t *testing.T, zk, text string, want bool, args ...string) {
	t.Helper()
	testhelp.Eventually(t, fmt.Sprintf("%v to show %q: %t", args, text, want), func() bool {
		out, _ := command(zk, args...)
		return strings.Contains(out, text) == want
	})
}

// A chroot that does not exist is named, with the exit code of wrong settings.
func TestOneShot_MissingChroot(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	for _, args := range []string{
		"lock x -- true", "lock --list x", "elect --once x", "elect --list x", "members /x", "members /x --watch", "watch /x", "zk ls /", "zk get /x",
		"queue put q body", "queue take q", "queue len q", "barrier wait b", "txn result t", "config get /x", "config history /x",
	} {
		out, err := command(zk+"/none", strings.Fields(args)...)
		if exitOf(err) != exitConfig || !strings.Contains(out, "the chroot /none does not exist") || !strings.Contains(out, "hint: create it: zkagent zk create /none") {
			t.Errorf("%s: %v: %s", args, err, out)
		}
	}
}

// A stream ends when its --timeout is over, although the server answers.
func TestOneShot_StreamsObeyTheTimeout(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	for _, args := range []string{"watch /", "watch / --once --children", "watch / --recursive", "members / --watch", "elect --observe x"} {
		out, err := command(zk, append(strings.Fields(args), "--timeout", "4s")...)
		if exitOf(err) != exitTemporary || !strings.Contains(out, "not done within 4s") || strings.HasPrefix(args, "elect") && !strings.HasPrefix(out, "no leader\n") {
			t.Errorf("%s: %v: %s", args, err, out)
		}
	}
}

// watch --recursive warns about a znode that it cannot read, once.
func TestWatch_RecursiveWarnsOnce(t *testing.T) {
	t.Parallel()
	srv, zk := lockServer(t)
	for _, path := range []string{"/t", "/t/closed"} {
		if err := srv.Create(path, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.SetACL("/t/closed", []jute.ACL{{Perms: 31, Scheme: "digest", ID: "u:x"}}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 1)
	go func() {
		out, _ := command(zk, "watch", "/t", "--recursive", "--once", "--timeout", "30s")
		ended <- out
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case out := <-ended:
			if strings.Count(out, "/t/closed cannot be read") != 1 || !strings.Contains(out, "created") {
				t.Errorf("got %s", out)
			}
			return
		case <-tick.C:
			_ = srv.Create(fmt.Sprint("/t/n", n), nil)
		}
	}
}

// members --watch goes on in the next session, unless it is told not to.
func TestMembers_WatchOutlivesItsSession(t *testing.T) {
	t.Parallel()
	srv, zk := lockServer(t)
	create := func(path, data string) {
		t.Helper()
		if err := srv.Create(path, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	create("/g", "")
	create("/g/a", `{"host":"10.0.0.1","port":1}`)
	x := onTerminal(t, 120, []string{zk}, "members", "/g", "--format", "json", "--watch")
	x.await("10.0.0.1")
	for _, id := range srv.SessionIDs() {
		srv.ExpireSession(id)
	}
	x.await("joining again")
	create("/g/b", `{"host":"10.0.0.2","port":2}`)
	x.await("10.0.0.2")
	x.send("\x03")
	x.end(exitSignal + int(syscall.SIGINT))

	y := onTerminal(t, 120, []string{zk}, "members", "/g", "--format", "json", "--watch", "--fail-on-expiry")
	y.await("10.0.0.2")
	for _, id := range srv.SessionIDs() {
		srv.ExpireSession(id)
	}
	y.end(exitUnavailable)
}

// The commands of a vote have our standard input and output, and the terminal.
func TestTxn_CommandsHaveOurStreams(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	propose := func(name string) {
		t.Helper()
		x := onTerminal(t, 80, []string{zk}, "txn", "propose", name, "--sites", "a", "--deadline", "1h")
		shown(t, zk, "undecided", true, "txn", "result", name)
		t.Cleanup(func() { x.end(0) })
	}
	propose("piped")
	cmd := exec.Command("zkagent", "txn", "vote", "piped", "--site", "a", "--on-commit", "cat; echo after; echo note >&2", "--", "sh", "-c", "read line; echo got $line")
	cmd.Env, cmd.Stdin = append(os.Environ(), zk), strings.NewReader("one\ntwo\n")
	out, err := cmd.Output()
	if err != nil || string(out) != "got one\ntwo\nafter\ncommit\n" {
		t.Errorf("got %q, %v", out, err)
	}
	propose("json")
	cmd = exec.Command("zkagent", "txn", "vote", "json", "--site", "a", "-o", "json", "--", "echo", "noise")
	cmd.Env = append(os.Environ(), zk)
	out, err = cmd.Output()
	if err != nil || strings.Contains(string(out), "noise") || !strings.Contains(string(out), `"commit"`) {
		t.Errorf("the document: %q, %v", out, err)
	}
	propose("terminal")
	x := onTerminal(t, 80, []string{zk}, "txn", "vote", "terminal", "--site", "a", "--", "sh", "-c", "echo sure?; read n </dev/tty; test $n = yes")
	x.await("sure?")
	x.send("yes\r")
	shows(t, x.end(0), "commit")
}

// A prepare command that cannot be run, or that a signal ends, votes abort.
func TestTxn_PrepareThatFailsVotesAbort(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	for name, args := range map[string][]string{"missing": {"no-such-program-here"}, "code": {"sh", "-c", "exit 3"}, "killed": {"sh", "-c", "kill -TERM $$"}} {
		x := onTerminal(t, 80, []string{zk}, "txn", "propose", name, "--sites", "a", "--deadline", "1h")
		shown(t, zk, "undecided", true, "txn", "result", name)
		out, err := command(zk, append([]string{"txn", "vote", name, "--site", "a", "--"}, args...)...)
		if exitOf(err) != exitFailed || !strings.Contains(out, "voting abort") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		x.end(exitFailed)
	}
}

// elect --list says what a candidate's command does.
func TestElect_ListSaysWhatIsRun(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	x := onTerminal(t, 80, []string{zk}, "elect", "--describe", "nightly report", "x", "--", "sh", "-c", "echo leading; read line")
	x.await("leading")
	host, _ := os.Hostname()
	out, err := command(zk, "elect", "--list", "x")
	if want := fmt.Sprintf("%s:%d nightly report", host, x.cmd.Process.Pid); err != nil || !strings.Contains(out, want) || !strings.Contains(out, "holds") {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if out, err := command(zk, "elect", "--list", "x", "-o", "ndjson"); err != nil || !strings.Contains(out, `,"state":"holds"`) || strings.Count(out, "\n") != 1 {
		t.Errorf("ndjson has one line for each candidate: got %q, %v", out, err)
	}
	x.send("\r")
	x.end(0)
	if out, err := command(zk, "elect", "--describe", "a", "--id", "b", "x", "--", "true"); exitOf(err) != exitUsage {
		t.Errorf("both: %v: %s", err, out)
	}
}

// What commands do on a terminal, with a real ZooKeeper.
func TestTerminal_RealServer(t *testing.T) {
	testhelp.OnlyAll(t, "a server and a terminal of its own")
	t.Parallel()
	zk := "ZKAGENT_ZK=" + zktest.Start(t).Addr()
	t.Run("lock reads the terminal", func(t *testing.T) {
		t.Parallel()
		x := onTerminal(t, 80, []string{zk}, "lock", "tty", "--", "sh", "-c", "echo name?; read n </dev/tty; echo hello $n; exit 7")
		x.await("name?")
		x.send("world\r")
		shows(t, x.end(7), "hello world")
	})
	t.Run("elect gets Ctrl-C", func(t *testing.T) {
		t.Parallel()
		x := onTerminal(t, 80, []string{zk}, "elect", "int", "--", "sh", "-c", "trap 'echo got INT; exit 9' INT; echo ready; while :; do sleep 0.05; done")
		x.await("ready")
		x.send("\x03")
		shows(t, x.end(9), "got INT")
		if out, err := command(zk, "elect", "--once", "int"); exitOf(err) != exitFailed {
			t.Errorf("somebody leads afterwards: %s %v", out, err)
		}
	})
	t.Run("elect passes a signal on", func(t *testing.T) {
		t.Parallel()
		x := onTerminal(t, 80, []string{zk}, "elect", "signal", "--", "sh", "-c", "trap 'sleep 1; echo got INT; exit 9' INT; echo ready; while :; do sleep 0.05; done")
		x.await("ready")
		if err := x.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		shows(t, x.end(9), "got INT")
	})
	t.Run("a reservation reads the terminal", func(t *testing.T) {
		t.Parallel()
		if out, err := command(zk, "queue", "put", "jobs", "body"); err != nil {
			t.Fatal(out)
		}
		x := onTerminal(t, 80, []string{zk}, "queue", "reserve", "jobs", "--", "sh", "-c", "echo more?; read n </dev/tty; echo $n done")
		x.await("more?")
		x.send("17\r")
		shows(t, x.end(0), "17 done")
	})
	t.Run("a waiter outlives its session", func(t *testing.T) {
		t.Parallel()
		done := filepath.Join(t.TempDir(), "done")
		holder := onTerminal(t, 80, []string{zk}, "lock", "expiry", "--", "sh", "-c", "echo holding; read line")
		holder.await("holding")
		waiter := onTerminal(t, 120, []string{zk}, "--session-timeout", "4s", "lock", "expiry", "--", "touch", done)
		waiter.await("waiting for lock")
		if err := waiter.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		shown(t, zk, "waits", false, "lock", "--list", "expiry") // the server has ended the session
		if err := waiter.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		waiter.await("joining again")
		holder.send("\r")
		holder.end(0)
		waiter.end(0)
		if _, err := os.Stat(done); err != nil {
			t.Error(err)
		}
	})
}
