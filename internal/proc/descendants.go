package proc

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
