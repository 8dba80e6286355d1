//go:build !linux && !darwin

package session

import "golang.org/x/sys/unix"

// Nothing is known of how these systems count sleep, so that it is not seen.
const (
	clockAlways = unix.CLOCK_MONOTONIC
	clockAwake  = unix.CLOCK_MONOTONIC
)
