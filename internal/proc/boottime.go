package proc

import (
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
