package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func signalGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

// endGroup sends stop, TERM when it is 0, to the group and KILL after grace unless exited is
// closed before.
func endGroup(pid int, stop syscall.Signal, grace time.Duration, exited <-chan struct{}) {
	signalGroup(pid, cmp.Or(stop, syscall.SIGTERM))
	// A stopped process would see TERM only when it is continued.
	signalGroup(pid, syscall.SIGCONT)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
		signalGroup(pid, syscall.SIGKILL)
		<-exited
	}
}

// killDescendants kills and reaps every child of this process, and the
// children that come to it by that, for at most two seconds. It is for a
// guard, which is a subreaper.
func killDescendants() {
	end := time.Now().Add(2 * time.Second)
	for time.Now().Before(end) {
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR || pid > 0 {
			continue
		}
		if err != nil {
			return // ECHILD: no child is left.
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// children lists the processes whose parent is a thread of this one.
func children() []int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Catches reports whether a process has a handler for the signal, or blocks it to read it
// later. Without either, most signals end a process.
func Catches(pid int, sig syscall.Signal) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		name, mask, _ := strings.Cut(line, ":")
		if name == "SigCgt" || name == "SigBlk" {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err == nil && bits>>(sig-1)&1 == 1 {
				return true
			}
		}
	}
	return false
}

// Lock waits until nobody else has a lock on the file, and takes it. It ends with the file,
// or the process. So a caller waits for all guards that were started with this file, by
// this process or a previous one. waiting, unless nil, is called once when somebody has it.
func Lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		f, err := lock(path, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// lock opens and locks a file, again after a signal.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600) //nolint:gosec // the path is the agent's own.
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if uid := int(st.Uid); err == nil && uid != 0 && uid != os.Geteuid() {
		err = fmt.Errorf("it belongs to user %d, who could hold the lock forever", uid)
	} else if err == nil {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(f.Fd()), how)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// bootNow is the time since boot in nanoseconds, counting the time in which
// the machine slept: all processes of the host agree on it, and a lease does
// run out during sleep.
func bootNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// bootDeadline turns a time with a monotonic reading into time since boot.
func bootDeadline(t time.Time) int64 { return bootNow() + int64(time.Until(t)) }

// untilBoot is how long to wait for the deadline, at most a second at a time:
// timers do not count sleep.
func untilBoot(deadline int64) time.Duration {
	return min(max(time.Duration(deadline-bootNow()), 0), time.Second)
}

// SystemAge is how long the machine has run, or the container: since its process 1
// started, or since boot where that process is hidden.
func SystemAge() time.Duration {
	now := bootNow()
	if now == 0 {
		return math.MaxInt64
	}
	data, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return time.Duration(now)
	}
	return time.Duration(now - startOf(string(data)))
}

// startOf reads when a process started, in nanoseconds after boot, from its stat; 0
// when the text is no stat.
func startOf(stat string) int64 {
	// pid (name) state ... starttime ...; the name may hold anything.
	const startTime, perTick = 19, int64(time.Second / 100)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startTime {
		return 0
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return 0
	}
	return ticks * perTick
}
