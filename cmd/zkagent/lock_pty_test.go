package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// lockServer is a ZooKeeper for a test of commands. Its sessions last two seconds at
// most.
func lockServer(t *testing.T) (*memzk.Server, string) {
	t.Helper()
	return tickingServer(t, 500*time.Millisecond)
}

// tickingServer is a ZooKeeper whose sessions last twenty ticks at most.
func tickingServer(t *testing.T, tick time.Duration) (*memzk.Server, string) {
	t.Helper()
	srv := memzk.New(memzk.Options{TickTime: tick})
	t.Cleanup(srv.Close)
	addr, err := srv.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return srv, "ZKAGENT_ZK=" + addr.String()
}

// The command under a lock owns the terminal: it reads what is typed on /dev/tty.
func TestLock_TheCommandReadsTheTerminal(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	x := onTerminal(t, 80, []string{zk}, "lock", "x", "--", "sh", "-c", "echo name?; read n </dev/tty; echo hello $n; exit 7")
	x.await("name?")
	x.send("world\r")
	shows(t, x.end(7), "hello world")
}

// Ctrl-C reaches the command, as it is; its exit code is ours.
func TestLock_CtrlC(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	x := onTerminal(t, 80, []string{zk}, "lock", "x", "--", "sh", "-c", "trap 'echo got INT; exit 9' INT; echo ready; while :; do sleep 0.05; done")
	x.await("ready")
	x.send("\x03")
	shows(t, x.end(9), "got INT")
}

// Ctrl-Z stops the command and zkagent, and fg goes on with both.
func TestLock_CtrlZ(t *testing.T) {
	t.Parallel()
	x := onShell(t, `zkagent --session-timeout 60s lock x -- sh -c 'echo ready; read line; echo got $line'
echo stopped with $?
fg >/dev/null
echo ended with $?`)
	x.await("ready")
	x.send("\x1a")
	x.await("stopped with 148")
	x.send("again\r")
	shows(t, x.end(0), "got again", "ended with 0")
}

// A command that started in the background has the terminal after fg.
func TestLock_FromTheBackground(t *testing.T) {
	t.Parallel()
	x := onShell(t, `zkagent --session-timeout 60s lock x -- sh -c 'echo ready; read line; echo got $line' &
read go
kill -STOP %1
until jobs %1 | grep -q Stopped; do sleep 0.05; done
echo asleep
fg >/dev/null
echo ended with $?`)
	x.await("ready")
	x.send("go\r")
	x.await("asleep")
	x.send("again\r")
	shows(t, x.end(0), "got again", "ended with 0")
}

// onShell runs a script in a shell with job control, on a terminal and with a
// ZooKeeper.
func onShell(t *testing.T, script string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Fatal(err)
	}
	_, zk := tickingServer(t, 3*time.Second) // A job stands still for less than a minute.
	master, slave := openPTY(t, 80)
	x := &terminal{t: t, master: master, news: make(chan struct{}), cmd: exec.Command("bash", "-c", "set -m\n"+script)}
	x.cmd.Env = append(os.Environ(), "TERM=xterm", zk)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := x.cmd.Start()
	_ = slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	x.read.Go(x.copy)
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		x.read.Wait()
		_ = master.Close()
	})
	return x
}

// Signals are passed on as they are. The lock is given back when the command has
// ended.
func TestLock_SignalsArePassedOn(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			srv, zk := lockServer(t)
			ready := filepath.Join(t.TempDir(), "ready")
			cmd := exec.Command("zkagent", "lock", "x", "--", "sh", "-c",
				fmt.Sprintf("trap 'exit 42' %d; : >%s; while :; do sleep 0.05; done", sig, ready))
			cmd.Env = append(os.Environ(), zk)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			testhelp.Eventually(t, "the command to run", func() bool {
				_, err := os.Stat(ready)
				return err == nil
			})
			_ = cmd.Process.Signal(sig)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 42 {
				t.Errorf("exit code %d, want that of the command", code)
			}
			if left, _ := srv.Children("/zkagent/locks/x"); len(left) > 0 {
				t.Errorf("the lock is still there: %v", left)
			}
		})
	}
}

// A command that does not end after a signal is killed, after --kill-after.
func TestLock_KillAfter(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	x := onTerminal(t, 80, []string{zk}, "lock", "--kill-after", "200ms", "x", "--", "sh", "-c", "trap 'echo no' TERM INT; echo ready; while :; do sleep 0.05; done")
	x.await("ready")
	if err := x.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	x.end(exitSignal + int(syscall.SIGKILL))
}

// Arguments and the environment are bytes.
func TestLock_ArgumentsAreBytes(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	cmd := exec.Command("zkagent", "lock", "x", "--", "sh", "-c", `printf '%s|%s' "$1" "$V"`, "-", "a\xffb")
	cmd.Env = append(os.Environ(), zk, "V=\xfe")
	out, err := cmd.Output()
	if err != nil || string(out) != "a\xffb|\xfe" {
		t.Errorf("got %q, %v", out, err)
	}
}

// A waiter joins the line again when its session has expired.
func TestLock_AWaiterOutlivesItsSession(t *testing.T) {
	t.Parallel()
	srv, zk := lockServer(t)
	holder := onTerminal(t, 80, []string{zk}, "lock", "--describe", "the first", "x", "--", "sh", "-c", "echo holding; read line")
	holder.await("holding")
	waiter := onTerminal(t, 120, []string{zk}, "lock", "x", "--", "echo", "mine")
	waiter.await("waiting for lock")
	names, _ := srv.Children("/zkagent/locks/x")
	for _, name := range names {
		n, err := srv.Get("/zkagent/locks/x/" + name)
		if err == nil && !strings.HasSuffix(string(n.Data), "the first") {
			srv.ExpireSession(n.Stat.EphemeralOwner)
		}
	}
	waiter.await("joining again")
	list, err := command(zk, "lock", "--list", "x")
	if err != nil || !strings.Contains(list, "holds") || !strings.Contains(list, "the first") {
		t.Errorf("list: %q, %v", list, err)
	}
	refused, err := command(zk, "lock", "-n", "x", "--", "true")
	if err == nil || !strings.Contains(refused, "held by") || !strings.Contains(refused, "the first") {
		t.Errorf("the hint does not name the holder: %q, %v", refused, err)
	}
	holder.send("\r")
	holder.end(0)
	shows(t, waiter.end(0), "mine")
}

// -n and -w bound the connection, too; a number is seconds.
func TestLock_WaitsBoundTheConnection(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"-n": "2s", "-w 1": "1s", "-w 500ms": "500ms"} {
		out, err := command("ZKAGENT_ZK=127.0.0.1:1", strings.Fields("lock "+args+" x -- true")...)
		exit, ok := err.(*exec.ExitError) //nolint:errorlint // it is that very one
		if !ok || exit.ExitCode() != exitUnavailable || !strings.Contains(out, "(gave up after "+want+")") {
			t.Errorf("%s: %v: %s", args, err, out)
		}
	}
}

// --write takes a write lock; another kind of lock on the path is refused.
func TestLock_Kinds(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	holder := onTerminal(t, 80, []string{zk}, "lock", "--write", "x", "--", "sh", "-c", "echo holding; read line")
	holder.await("holding")
	for _, args := range [][]string{{"x"}, {"--permits", "2", "x"}} {
		out, err := command(zk, append(append([]string{"lock", "-n"}, args...), "--", "true")...)
		if err == nil || !strings.Contains(out, "is used as a read-write lock") {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	holder.send("\r")
	holder.end(0)
}

// command runs zkagent and returns all that it prints.
func command(env string, args ...string) (string, error) {
	cmd := exec.Command("zkagent", args...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
