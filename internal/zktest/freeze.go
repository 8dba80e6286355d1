package zktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// awaitStopped waits until every thread of the process has stopped. A signal is
// only a request: for a moment after SIGSTOP a thread on another processor goes
// on, and a server answers.
func (p *process) awaitStopped(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), startLimit)
	defer cancel()
	for !p.allStopped() {
		if p.ended() {
			tb.Fatal("zktest: the server ended instead of freezing")
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			tb.Fatalf("zktest: the server does not freeze: %v", err)
		}
	}
}

// allStopped reads the states of all threads from /proc.
func (p *process) allStopped() bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task) //nolint:gosec // Below /proc.
		if err != nil {
			return false
		}
		// The state follows the name, which stands in parentheses.
		end := bytes.LastIndexByte(stat, ')')
		if end < 0 || len(stat) < end+3 || stat[end+2] != 'T' {
			return false
		}
	}
	return true
}
