package session

import "golang.org/x/sys/unix"

// The clock that continues while the machine sleeps, and the one that stops.
const (
	clockAlways = unix.CLOCK_BOOTTIME
	clockAwake  = unix.CLOCK_MONOTONIC
)
