package proc

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
