package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
)

// workersOf lists the children of the process whose id the file holds; nil
// when there is no such file or process.
func workersOf(pidFile string) map[int]bool {
	if pidFile == "" {
		return nil
	}
	data, err := os.ReadFile(pidFile) //nolint:gosec // the path is from the settings.
	if err != nil {
		return nil
	}
	master, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil
	}
	return childrenOf(master)
}

// childrenOf finds the processes whose parent is pid.
func childrenOf(pid int) map[int]bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	found := map[int]bool{}
	for _, path := range stats {
		data, err := os.ReadFile(path) //nolint:gosec // below /proc.
		if err != nil {
			continue
		}
		// pid (name) state ppid ...; the name may hold anything.
		_, rest, ok := strings.Cut(string(data), ") ")
		if i := strings.LastIndex(string(data), ") "); i >= 0 {
			rest = string(data)[i+2:]
		}
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if n, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found[n] = true
		}
	}
	return found
}

// renewed reports whether the workers are new: as many new ones as there were
// before, or some and none of the former. Former ones may stay for a while, to
// end their connections; one new child alone may be a helper of the master.
func renewed(before, now map[int]bool) bool {
	fresh := 0
	for pid := range now {
		if !before[pid] {
			fresh++
		}
	}
	return fresh > 0 && (fresh >= len(before) || fresh == len(now))
}

// verifyWorkers waits until the master has new workers: the return code of a
// reload is no proof that it took effect.
func verifyWorkers(ctx context.Context, pidFile string, before map[int]bool, timeout time.Duration) error {
	if timeout <= 0 {
		timeout = DefaultVerifyTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("no new worker"))
	defer cancel()
	for {
		if renewed(before, workersOf(pidFile)) {
			return nil
		}
		if !pace.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("verify reload by %s: %w", pidFile, context.Cause(ctx))
		}
	}
}
