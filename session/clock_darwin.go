package session

import "golang.org/x/sys/unix"

// The clock that continues while the machine sleeps, and the one that stops:
// clock_gettime(3) of macOS.
const (
	clockAlways = unix.CLOCK_MONOTONIC
	clockAwake  = unix.CLOCK_UPTIME_RAW
)
