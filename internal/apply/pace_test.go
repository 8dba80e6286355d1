package apply

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestReloads_Splay wants one wait of at most the splay before the run, and
// two hosts not to wait alike.
func TestReloads_Splay(t *testing.T) {
	const splay = time.Hour
	waits := map[time.Duration]bool{}
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			b, began := newReloadBed(), time.Now()
			b.join("q")
			b.join("q")
			var done [2]chan error
			for i := range done {
				done[i] = make(chan error, 1)
				b.submit(t.Context(), "q", &reloadRequest{
					bundle: strconv.Itoa(i), cfg: &ReloadConfig{}, lists: [][]string{{"reload"}}, splay: splay, done: done[i],
				})
			}
			if err := errors.Join(<-done[0], <-done[1]); err != nil {
				t.Error(err)
			}
			b.wg.Wait()
			wait := time.Since(began) - 100*time.Millisecond // the run itself
			if wait < 0 || wait >= splay || len(b.ran) != 1 {
				t.Errorf("waited %v, ran %v", wait, b.ran)
			}
			waits[wait] = true
		})
	}
	if len(waits) == 1 {
		t.Errorf("three hosts waited alike: %v", waits)
	}
}

// TestReloads_SplayEndsWithTheAgent wants a stop not to wait for a splay.
func TestReloads_SplayEndsWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReloadBed()
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		b.join("q")
		done := make(chan error, 1)
		b.submit(ctx, "q", &reloadRequest{bundle: "b", cfg: &ReloadConfig{}, lists: [][]string{{"reload"}}, splay: time.Hour, done: done})
		synctest.Wait()
		cancel(stopped)
		if err := <-done; !errors.Is(err, stopped) {
			t.Errorf("got %v, want %v", err, stopped)
		}
		b.got(t, "")
	})
}

// TestReloads_RetriesBackOff wants the waits between the tries to grow, and
// the least interval to be their first step.
func TestReloads_RetriesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReloadBed()
		began := time.Now()
		var at []time.Duration // of each try; the bed's lock is not held, but one run follows the other.
		b.run = func([]string) error {
			at = append(at, time.Since(began))
			return errors.New("refused")
		}
		b.join("q")
		cfg := &ReloadConfig{Retry: 5, MinInterval: 4 * time.Second, OnFailure: onFailureKeep}
		if err := <-b.ask(t.Context(), cfg, nil, "reload"); err == nil {
			t.Error("a reload that always fails went well")
		}
		b.wg.Wait()
		if len(at) != 6 {
			t.Fatalf("got tries at %v, want six", at)
		}
		for i, step := range []time.Duration{4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
			// A try takes 100 ms.
			if wait := at[i+1] - at[i] - 100*time.Millisecond; wait < step/2 || wait > step {
				t.Errorf("before try %d: waited %v, want %v to %v", i+2, wait, step/2, step)
			}
		}
	})
}

// TestVerifyWorkers has a master as nginx is: on a signal it starts another
// worker. Only then is a reload believed.
func TestVerifyWorkers(t *testing.T) {
	dir := t.TempDir()
	pidFile, ready := filepath.Join(dir, "pid"), filepath.Join(dir, "ready")
	master := exec.Command("/bin/sh", "-c", `sleep 1000 & trap 'sleep 1000 &' USR1; : > "$1"; while :; do wait; done`, "master", ready)
	master.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-master.Process.Pid, syscall.SIGKILL)
		_ = master.Wait()
	})
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(master.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the master and its worker", func() bool { return exists(ready) && len(workersOf(pidFile)) == 1 })
	before := workersOf(pidFile)
	if err := (&verification{cfg: VerifyConfig{PIDFile: pidFile, Timeout: 50 * time.Millisecond}, before: before}).wait(t.Context()); err == nil {
		t.Error("a reload without a new worker was believed")
	}
	// A shell cannot trap HUP where nohup began. It takes a signal that comes just
	// before its wait when the wait is over.
	eventually(t, "a new worker after a signal", func() bool {
		return master.Process.Signal(syscall.SIGUSR1) == nil && (&verification{cfg: VerifyConfig{PIDFile: pidFile, Timeout: time.Second}, before: before}).wait(t.Context()) == nil
	})
	for _, none := range []string{"", filepath.Join(dir, "none"), ready} {
		if w := workersOf(none); len(w) != 0 {
			t.Errorf("%q: got workers %v", none, w)
		}
	}
}

// TestReloads_VerifyFails: a reload whose command succeeds and changes nothing has
// failed, and the error says so.
func TestReloads_VerifyFails(t *testing.T) {
	b := newReloadBed()
	b.join("q")
	cfg := &ReloadConfig{Verify: &VerifyConfig{PIDFile: filepath.Join(t.TempDir(), "none"), Timeout: 20 * time.Millisecond}, OnFailure: onFailureKeep}
	err := <-b.ask(t.Context(), cfg, nil, "true")
	b.wg.Wait()
	if err == nil || !strings.Contains(err.Error(), "no new worker") {
		t.Errorf("got %v, want no new worker", err)
	}
}

func TestRenewed(t *testing.T) {
	set := func(pids ...int) map[int]bool {
		m := map[int]bool{}
		for _, p := range pids {
			m[p] = true
		}
		return m
	}
	for name, c := range map[string]struct {
		before, now map[int]bool
		want        bool
	}{
		"nothing happened":               {set(1, 2), set(1, 2), false},
		"one helper beside the former":   {set(1, 2), set(1, 2, 3), false},
		"as many new ones, former stay":  {set(1, 2), set(1, 2, 3, 4), true},
		"fewer workers than before":      {set(1, 2), set(3), true},
		"the first workers":              {set(), set(3), true},
		"all are gone":                   {set(1), set(), false},
		"one of two, the other is still": {set(1, 2), set(2, 3), false},
	} {
		if got := renewed(c.before, c.now); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A program that says in its log that it refuses the configuration ends the wait at once,
// and is not asked again.
func TestVerify_EndsWithTheWordsOfTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, runs := filepath.Join(dir, "error.log"), filepath.Join(dir, "runs")
	if err := os.WriteFile(log, []byte("1 [emerg] of an earlier reload\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newApplyBed(t)
	c := b.file("web", `{{ key "web/v" }}`)
	c.Reload = &ReloadConfig{
		Command: script("echo run >> %s; echo '2 [notice] reload' >> %s; echo '3 [emerg] bind() to 0.0.0.0:80 failed' >> %s", runs, log, log),
		Retry:   3, OnFailure: onFailureKeep, Verify: &VerifyConfig{PIDFile: filepath.Join(dir, "none"), Log: log, Timeout: time.Minute},
	}
	b.keys(map[string]string{"v": "1"})
	began := time.Now()
	b.bad(b.bundle(c), stageReload, "[emerg] bind() to 0.0.0.0:80 failed")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if got := read(t, runs); got != "run\n" {
		t.Errorf("the reload ran: %q", got)
	}
}
