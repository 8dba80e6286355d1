package agent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrForced is returned by RunSignals when a second signal ended it at once.
var ErrForced = errors.New("ended at once by a second signal")

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
	stopping := false
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
				if stopping {
					return ErrForced
				}
				stopping = true
				if s == syscall.SIGINT {
					a.Leave()
				} else {
					cancel()
				}
			}
		}
	}
}
