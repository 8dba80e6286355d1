//go:build !linux && !darwin

package session

import "golang.org/x/sys/unix"

// We do not know how these systems count sleep, so sleep goes unnoticed there.
const (
	clockAlways = unix.CLOCK_MONOTONIC
	clockAwake  = unix.CLOCK_MONOTONIC
)
