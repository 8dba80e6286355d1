package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

func TestMain(m *testing.M) {
	GuardMain()
	holder()
	os.Exit(m.Run())
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// gone waits until the process is not there any more.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d to be gone", pid), func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(data), ") Z ")
	})
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	var pid int
	eventually(t, path, func() bool {
		data, _ := os.ReadFile(path)
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		pid = n
		return err == nil && strings.HasSuffix(string(data), "\n")
	})
	return pid
}

func TestRun_OutputAndExitCode(t *testing.T) {
	r, err := Run(t.Context(), Command{Args: sh("cat; echo err >&2; exit 3"), Stdin: []byte("in\n")})
	e, ok := errors.AsType[*ExitError](err)
	if !ok || r.Code != 3 || e.Result.Code != 3 {
		t.Fatalf("got code %d, error %v", r.Code, err)
	}
	if got, want := r.Output, "in\nerr\n"; got != want {
		t.Errorf("got output %q, want %q", got, want)
	}
	if got, want := err.Error(), "sh: exit status 3: in; err"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRun_CleanEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/secret")
	r, err := Run(t.Context(), Command{Args: []string{"/usr/bin/env"}, Env: []string{"ZKAGENT_EVENT=check"}})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(r.Output) {
		name, _, _ := strings.Cut(line, "=")
		if name != "PATH" && name != "HOME" && name != "LANG" && name != "ZKAGENT_EVENT" {
			t.Errorf("unexpected variable %q", line)
		}
	}
	if !strings.Contains(r.Output, "ZKAGENT_EVENT=check\n") {
		t.Errorf("the given variable is missing: %q", r.Output)
	}
}

func TestRun_OutputIsCutAtTheFront(t *testing.T) {
	r, err := Run(t.Context(), Command{Args: sh("i=0; while [ $i -lt 5000 ]; do echo 0123456789; i=$((i+1)); done; echo the end"), OutputLimit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(r.Output, "the end\n") || len(r.Output) > 1100 || r.Truncated != 55008-1000 {
		t.Errorf("got %d bytes, %d cut", len(r.Output), r.Truncated)
	}
}

func TestRun_MissingProgramDoesNotShowArguments(t *testing.T) {
	_, err := Run(t.Context(), Command{Args: []string{"/nonexistent/prog", "s3cret"}})
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "prog") {
		t.Errorf("got %v", err)
	}
}

func TestRun_LargeStandardInputThatNobodyReads(t *testing.T) {
	if _, err := Run(t.Context(), Command{Args: []string{"/bin/true"}, Stdin: make([]byte, 4<<20)}); err != nil {
		t.Fatal(err)
	}
}

func TestRun_TimeoutKillsTheGroup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf("trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $! > %s; wait; while :; do sleep 1; done", file)
	r, err := Run(t.Context(), Command{Args: sh(script), Timeout: 8 * time.Second, Grace: 100 * time.Millisecond})
	if !errors.Is(err, ErrTimeout) || !r.TimedOut || r.Signal != "SIGKILL" {
		t.Errorf("got %+v, %v", r, err)
	}
	gone(t, readPID(t, file))
}

func TestRun_GrandchildThatHoldsThePipeIsGone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	r, err := Run(t.Context(), Command{Args: sh(fmt.Sprintf("sleep 1000 & echo $! > %s; echo done", file))})
	if err != nil || r.Output != "done\n" {
		t.Fatalf("got %+v, %v", r, err)
	}
	gone(t, readPID(t, file))
}

func TestRun_ProcessThatLeftTheGroupDoesNotBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	_, err := Run(t.Context(), Command{Args: sh(fmt.Sprintf("setsid sh -c 'echo $$ > %s; exec sleep 1000' & while ! [ -s %s ]; do sleep 0.01; done", file, file))})
	if err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, file)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	gone(t, pid)
}

func TestRun_ContextEndsIt(t *testing.T) {
	why := errors.New("term ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	_, err := Run(ctx, Command{Args: sh("sleep 1000"), Started: func(int) { cancel(why) }})
	if !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
}

func forever() time.Time { return time.Now().Add(time.Hour) }

func TestGuard_PassesResultAndStreams(t *testing.T) {
	r, err := Guard{Lease: forever}.Run(t.Context(), Command{Args: sh("cat; echo $ZKAGENT_FENCE; exit 7"), Stdin: []byte("in\n"), Env: []string{"ZKAGENT_FENCE=42"}})
	if r.Code != 7 || r.Output != "in\n42\n" || err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestGuard_MissingProgram(t *testing.T) {
	_, err := Guard{Lease: forever}.Run(t.Context(), Command{Args: []string{"/nonexistent/prog"}})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

func TestGuard_LeaseAlreadyOver(t *testing.T) {
	_, err := Guard{Lease: func() time.Time { return time.Now().Add(-time.Second) }}.Run(t.Context(), Command{Args: sh("true")})
	if !errors.Is(err, ErrLease) {
		t.Errorf("got %v, want %v", err, ErrLease)
	}
}

func TestGuard_EndsTheCommandWhenTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(8 * time.Second)
	r, err := Guard{Lease: func() time.Time { return end }}.Run(t.Context(), Command{Args: sh("trap '' TERM; while :; do sleep 1; done"), Grace: 100 * time.Millisecond})
	if !errors.Is(err, ErrLease) || r.Signal != "SIGKILL" {
		t.Errorf("got %+v, %v", r, err)
	}
	if time.Now().Before(end) {
		t.Error("ended before the lease did")
	}
}

// A guard that starts after its first deadline has passed looks for a newer one
// before it gives up.
func TestGuard_LateStart(t *testing.T) {
	orders := make(chan guardOrder, 1)
	m := &guardMain{spec: spec{Deadline: bootNow() - 1}}
	if got := m.extended(orders); got != m.spec.Deadline {
		t.Errorf("without an order: got %d, want %d", got, m.spec.Deadline)
	}
	next := bootDeadline(time.Now().Add(time.Hour))
	orders <- guardOrder{Deadline: next}
	if got := m.extended(orders); got != next {
		t.Errorf("with an order: got %d, want %d", got, next)
	}
}

func TestGuard_ExtendedLeaseKeepsTheCommand(t *testing.T) {
	began := time.Now()
	var asked atomic.Int64
	lease := func() time.Time { asked.Add(1); return time.Now().Add(20 * time.Second) }
	file := filepath.Join(t.TempDir(), "stop")
	go func() {
		// The command is let go after the lease has been extended a few times.
		for asked.Load() < 5 {
			pause(10 * time.Millisecond)
		}
		_ = os.WriteFile(file, nil, 0o600)
	}()
	_, err := Guard{Lease: lease, Every: 50 * time.Millisecond}.Run(t.Context(), Command{Args: sh("while ! [ -e " + file + " ]; do sleep 0.05; done")})
	if err != nil {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

func TestGuard_DescendantsThatLeftTheGroupAreGone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf("setsid sh -c 'echo $$ > %s; exec sleep 1000' & while ! [ -s %s ]; do sleep 0.01; done", file, file)
	if _, err := (Guard{Lease: forever}).Run(t.Context(), Command{Args: sh(script)}); err != nil {
		t.Fatal(err)
	}
	gone(t, readPID(t, file))
}

func TestGuard_ContextEndsIt(t *testing.T) {
	why := errors.New("deposed")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var pid atomic.Int64
	_, err := Guard{Lease: forever}.Run(ctx, Command{Args: sh("sleep 1000"), Started: func(p int) { pid.Store(int64(p)); cancel(why) }})
	if !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	gone(t, int(pid.Load()))
}

// holder is the helper process of the tests below: it runs a guarded command
// until somebody kills or stops it.
func holder() {
	if len(os.Args) < 4 || os.Args[1] != "holder" {
		return
	}
	d, _ := time.ParseDuration(os.Args[3])
	lease := func() time.Time { return time.Now().Add(d) }
	g := Guard{Lease: lease, Every: 50 * time.Millisecond, LockFile: os.Args[2] + ".lock"}
	_, err := g.Run(context.Background(), Command{Args: sh("echo $$ > " + os.Args[2] + "; exec sleep 1000"), Grace: 100 * time.Millisecond})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(0)
}

func startHolder(t *testing.T, lease time.Duration) (*exec.Cmd, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "holder", file, lease.String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, file
}

func TestGuard_KilledOwner(t *testing.T) {
	cmd, file := startHolder(t, time.Hour)
	pid := readPID(t, file)
	_ = cmd.Process.Kill()
	gone(t, pid)
	if err := waitGuards(t.Context(), file+".lock", nil); err != nil {
		t.Fatal(err)
	}
}

func TestGuard_StoppedOwner(t *testing.T) {
	t.Parallel()
	cmd, file := startHolder(t, 10*time.Second)
	pid := readPID(t, file)
	reported := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- waitGuards(t.Context(), file+".lock", func() { close(reported) }) }()
	select {
	case <-reported:
	case err := <-done:
		t.Fatalf("no guard was waited for: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func waitGuards(ctx context.Context, path string, waiting func()) error {
	f, err := Lock(ctx, path, waiting)
	if err != nil {
		return err
	}
	return f.Close()
}

// pause is for loops that look at something which has no event.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// A lock file of another user is not waited for: he could hold it.
func TestLock_OfAnotherUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err := os.Chown(path, 1234, -1); err != nil {
		t.Skip("only root gives a file away:", err)
	}
	if _, err := Lock(t.Context(), path, func() { t.Fatal("waits") }); err == nil || !strings.Contains(err.Error(), "user 1234") {
		t.Errorf("got %v", err)
	}
}
