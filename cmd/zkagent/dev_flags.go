package main

import (
	"context"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxSimulated bounds the simulated members of one group: each has a session
// and a port of its own.
const maxSimulated = 500

// memberSpec is one --members flag.
type memberSpec struct {
	group string
	count int
}

// parseMembers reads NAME=COUNT flags.
func parseMembers(list []string) ([]memberSpec, error) {
	specs := make([]memberSpec, 0, len(list))
	for _, text := range list {
		name, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 || n > maxSimulated {
			return nil, usagef("--members %q: want GROUP=COUNT with at most %d, as in web=5", text, maxSimulated)
		}
		specs = append(specs, memberSpec{name, n})
	}
	return specs, nil
}

// parseOutage reads DOWN/EVERY.
func parseOutage(text string) (down, every time.Duration, err error) { //nolint:nonamedreturns // two durations need names.
	if text == "" {
		return 0, 0, nil
	}
	first, second, _ := strings.Cut(text, "/")
	down, derr := time.ParseDuration(first)
	every, eerr := time.ParseDuration(second)
	if derr != nil || eerr != nil || down <= 0 || every <= down {
		return 0, 0, usagef("--outage %q: want DOWN/EVERY with EVERY longer than DOWN, as in 30s/5m", text)
	}
	return down, every, nil
}

// notifyHangup ends the context when the terminal or the reader is gone.
func notifyHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGPIPE)
}
