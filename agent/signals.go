package agent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// ErrForced is returned by RunSignals when a second signal ended it at once.
var ErrForced = errors.New("ended at once by a second signal")

// Together is the time within which several signals are one request to stop: timeout
// and shells send theirs to a process and to its group.
const Together = time.Second

// RunSignals runs the agent and obeys signals: HUP reloads the settings, USR1
// renders everything again, TERM stops as on_stop says, INT leaves, and a
// second TERM or INT ends at once.
func (a *Agent) RunSignals(ctx context.Context) error {
	signals := make(chan os.Signal, 4) // a few may come while one is handled.
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var stopping time.Time // when it was first asked to
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			switch s {
			case syscall.SIGHUP:
				wg.Go(func() { _ = a.Reload(ctx) })
			case syscall.SIGUSR1:
				a.RenderAll(ctx)
			default:
				switch {
				case stopping.IsZero():
					stopping = time.Now()
				case time.Since(stopping) < Together:
					continue
				default:
					return ErrForced
				}
				if s == syscall.SIGINT {
					a.Leave()
				} else {
					cancel()
				}
			}
		}
	}
}
