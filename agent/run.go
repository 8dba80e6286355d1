package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/systemd"
)

// Values of Config.OnStop.
const (
	onStopAuto     = "auto"
	onStopLeave    = "leave"
	onStopHandOver = "hand_over"
)

// stopMode says how the agent goes.
type stopMode int

const (
	stopAuto     stopMode = iota // as the settings say
	stopLeave                    // members, candidates and session end
	stopHandOver                 // the session waits for the next process
	stopUpgrade                  // as before, and this process becomes the next one
)

// ErrUpgrade is returned by Run when the program is to be executed again in
// place; see [Exec].
var ErrUpgrade = errors.New("execute the program again")

// How long the steps of a stop may take. A file, a command or a server that holds up a
// step does not hold up the next one, so a stop ends within the longest drain, the
// longest kill_timeout of a program and stopLimit. docs/operations.md promises it.
const (
	stopApplyGrace = 10 * time.Second // an apply or hook that runs may finish
	stopUnitGrace  = 15 * time.Second // members and candidates leave
	stopHookGrace  = 20 * time.Second // on_deposed hooks finish
	stopStepGrace  = 5 * time.Second  // each of the other steps
	stopLimit      = 90 * time.Second
)

// Leave makes Run leave ZooKeeper and return.
func (a *Agent) Leave() { a.stop(stopLeave) }

// HandOver makes Run return with the session kept for the next process.
func (a *Agent) HandOver() { a.stop(stopHandOver) }

// Upgrade makes Run hand over and return [ErrUpgrade].
func (a *Agent) Upgrade() { a.stop(stopUpgrade) }

func (a *Agent) stop(m stopMode) { a.process.once.Do(func() { a.process.stop <- m }) }

// Run runs the agent until ctx ends (then it stops as on_stop says) or Leave,
// HandOver or Upgrade is called. When it has returned, nothing of it is left.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.settings.down)
	a.engine.Recover(a.cfg.Load().Bundles)
	listen, unlisten, err := a.web.Listen(ctx)
	if err != nil {
		return err
	}
	cfg := a.cfg.Load()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	sessions, endSessions := context.WithCancel(life)
	defer endSessions()
	loop, endLoop := context.WithCancel(life)
	defer endLoop()
	hooks, endHooks := context.WithCancel(life)
	defer endHooks()

	var wg, sessionDone, hooksDone sync.WaitGroup
	sessionErr := make(chan error, 1)
	sessionDone.Go(func() { sessionErr <- a.sessions.Run(sessions) })
	var damaged error
	a.loop.lastGood, damaged = lastgood.Load(a.first.StateDir) // for a start without ZooKeeper
	a.conds.Set(condition.LastGoodDamaged, "", damaged)
	wg.Go(func() { a.loop.run(loop) })
	a.sup.apply(life, a.unitSpecs(cfg, a.setLoop(life, cfg)), func() {})
	hooksDone.Go(func() { a.hooks.Run(hooks) })
	wg.Go(func() { a.saved.run(life) })
	if a.first.Load != nil {
		wg.Go(func() { a.fileWatch(life).Run(life) })
	}
	wg.Go(func() { a.announceReady(life) })
	wg.Go(func() { a.followConnection(life) })
	wg.Go(func() { a.followServices(life) })
	wg.Go(func() { listen(life) })
	wg.Go(func() { a.dns.Run(life) })

	a.announceChecks(cfg)
	close(a.settings.up)

	mode, err := a.wait(ctx, sessionErr)
	a.log.Info("stopping", "mode", mode.String())
	a.within(stopStepGrace, "settings", func() {
		a.settings.mu.Lock() // after the reload that is under way, and before any other
		defer a.settings.mu.Unlock()
		a.settings.closed = true
	})
	a.shutdown(mode, func() { endHooks(); hooksDone.Wait() }, func() { endLoop(); <-a.loop.done; a.engine.Close() }, func() { endSessions(); sessionDone.Wait() })
	end()
	a.within(stopStepGrace, "rest", func() { wg.Wait(); unlisten() })
	if err == nil && mode == stopUpgrade {
		err = ErrUpgrade
	}
	return err
}

func (a *Agent) wait(ctx context.Context, sessionErr <-chan error) (stopMode, error) {
	select {
	case <-ctx.Done():
		return a.decide(), nil
	case m := <-a.process.stop:
		return m, nil
	case err := <-a.process.failed:
		return stopLeave, err
	case err := <-sessionErr:
		return stopLeave, fmt.Errorf("session: %w", err)
	}
}

// decide is what on_stop means now. With auto, a service manager that is
// restarting us makes it a hand-over; when that is unknown, the agent leaves.
func (a *Agent) decide() stopMode {
	switch a.cfg.Load().OnStop {
	case onStopLeave:
		return stopLeave
	case onStopHandOver:
		return stopHandOver
	}
	if a.first.StateDir == "" {
		return stopLeave
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	job, err := systemd.Job(ctx)
	if err != nil {
		a.log.Debug("cannot ask the service manager why the agent stops", "err", err)
		return stopLeave
	}
	if strings.Contains(job, "restart") {
		return stopHandOver
	}
	return stopLeave
}

func (m stopMode) String() string {
	switch m {
	case stopHandOver:
		return onStopHandOver
	case stopUpgrade:
		return "upgrade"
	default:
		return onStopLeave
	}
}

// shutdown is the ordered stop: no new work; members and candidates leave, or
// stay for the next process; the session ends or is kept; the listeners go
// last, so that health is true to the end.
func (a *Agent) shutdown(mode stopMode, endHooks, endLoop, endSession func()) {
	over := mode != stopLeave
	if over {
		a.hooks.HandingOver()
	}
	if mode == stopUpgrade {
		_ = a.notify.Reloading()
	} else {
		_ = a.notify.Stopping("stopping: "+mode.String(), stopLimit+a.longestDrain()+a.longestKill())
	}
	a.quiesce()
	a.within(stopStepGrace+proc.DefaultGrace, "hooks", endHooks)
	a.within(stopStepGrace+a.longestKill(), "programs", func() { a.sup.stop(context.Background(), string(kindExec), true) })
	units := stopUnitGrace + a.longestDrain()
	ctx, cancel := context.WithTimeout(context.Background(), units)
	defer cancel()
	if over {
		// The connection goes first: nothing that units do while they end
		// can reach ZooKeeper and change what the next process takes over.
		a.within(stopApplyGrace, "leader-only commands", func() { a.hooks.HandOver(ctx) })
		a.sessions.HandOver()
		a.within(stopStepGrace, "session", endSession)
		a.within(units, "units", func() { a.sup.stop(ctx, "", false) })
	} else {
		a.within(units, "units", func() { a.sup.stop(ctx, "", true) })
		a.within(stopHookGrace, "on_deposed hooks", a.hooks.Wait)
		a.within(stopStepGrace, "session", endSession)
	}
	a.within(stopStepGrace, "applies", endLoop)
}

// within runs a step of the stop, and does not wait for it longer than the limit.
func (a *Agent) within(limit time.Duration, step string, run func()) {
	ended := make(chan struct{})
	go func() { defer close(ended); run() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		a.log.Warn("a step of the stop has not ended in time: the stop continues", "step", step, "limit", limit)
	}
}

// quiesce keeps applies from starting and lets those that run finish, within
// their grace.
func (a *Agent) quiesce() {
	ctx, cancel := context.WithTimeout(context.Background(), stopApplyGrace)
	defer cancel()
	a.loop.do(ctx, func() { a.loop.stopping = true })
	for ctx.Err() == nil {
		idle := true
		a.loop.do(ctx, func() {
			for _, b := range a.loop.bundles {
				idle = idle && !b.inFlight
			}
		})
		if idle || !pace.Sleep(ctx, 20*time.Millisecond) {
			return
		}
	}
	a.log.Warn("an apply did not finish in time, ending it", "grace", stopApplyGrace)
}

func (a *Agent) longestDrain() time.Duration {
	var d time.Duration
	for _, s := range a.cfg.Load().Services {
		d = max(d, s.Drain)
	}
	return d
}

// longestKill is the longest time that a supervised program may take to end.
func (a *Agent) longestKill() time.Duration {
	var d time.Duration
	for _, c := range a.cfg.Load().Execs {
		d = max(d, cmp.Or(c.KillTimeout, defaultKillTimeout))
	}
	return d
}

// announceReady reports to the service manager once that the agent is up.
func (a *Agent) announceReady(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.loop.ready:
	}
	a.log.Info("ready", "took", time.Since(a.process.started))
	a.events.Add(event.Event{Kind: "ready"})
	if err := a.notify.Ready(a.Summary()); err != nil {
		a.log.Warn("cannot notify the service manager", "err", err)
	}
	// What the start needed (settings, first renders) is given back: an agent
	// mostly waits.
	debug.FreeOSMemory()
}

// Ready returns a channel that is closed when the first useful state is
// reached: everything rendered, or running from the last known good view, or
// waiting for ZooKeeper with the present files in place.
func (a *Agent) Ready() <-chan struct{} { return a.loop.ready }

// Exec executes the program file again in place of this process, which keeps
// its id. It returns only when that fails.
func Exec() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	// A package manager replaces the file; the link of the old one then ends
	// with this mark.
	exe = strings.TrimSuffix(exe, " (deleted)")
	if err := syscall.Exec(exe, os.Args, os.Environ()); err != nil { //nolint:gosec // our own program.
		return fmt.Errorf("upgrade: execute %s: %w", exe, err)
	}
	return nil
}

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
