// Package program supervises the program of an exec block.
//
// Steps: the program starts when the files and keys that it needs are there for the
// first time. When they change it is restarted or signalled, as on_change says, after
// a random delay. When it ends by itself, the owner learns how.
//
// Guaranteed: one process at a time; a restart waits for the end of the former
// process, by KILL after the grace time; a change during a delay is not lost.
//
// Not guaranteed: a restart for each change. Changes that come together are one.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// Values of Config.OnChange; empty is Restart.
const (
	Restart = "restart"
	Signal  = "signal"
	Ignore  = "ignore"
)

// DefaultKillTimeout is the default of Config.KillTimeout.
const DefaultKillTimeout = 30 * time.Second

// Config is an exec block.
type Config struct {
	Name        string
	Command     command.Command
	EnvFrom     map[string]string // variable -> "config/key" reference
	After       []string          // bundles that must be rendered first; nil: all
	OnChange    string            // restart, signal or ignore
	Signal      string            // empty: HUP
	Splay       time.Duration
	KillSignal  string // empty: TERM
	KillTimeout time.Duration
}

// Status is what is shown of a program.
type Status struct {
	Name     string    `json:"name"`
	State    string    `json:"state"` // waiting, running, exited or stopped
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Starts   int       `json:"starts"`
	Code     int       `json:"code"` // of the latest exit
	Error    string    `json:"error,omitempty"`
	Restarts string    `json:"on_change"`
}

// State is what the program may depend on.
type State struct {
	View    view.View
	Ready   bool // the view is whole, or the last known good one
	Bundles []string
	// Applied returns when the files of a bundle were last changed; false: they are
	// not in place.
	Applied func(bundle string) (time.Time, bool)
	Next    <-chan struct{} // closed when there is another state
}

// Owner is what a program needs of the agent.
type Owner struct {
	State func() State
	Run   func(context.Context, proc.Command) (proc.Result, error)
	Tell  func(*Status)    // of each change of the status
	Ended func(*ExitError) // the program ended by itself; nil: with 0
	Log   *slog.Logger
}

// Program is one supervised program.
type Program struct {
	Owner

	cfg    Config
	status atomic.Pointer[Status]
	starts int
}

// New returns a program, to be run.
func New(cfg Config, owner Owner) *Program { return &Program{cfg: cfg, Owner: owner} }

// Status returns the latest status; nil: it does not run yet.
func (p *Program) Status() *Status { return p.status.Load() }

// ExitError is how a program ended by itself.
type ExitError struct {
	Name string
	Code int // as a shell reports it: 128 and the signal's number, 127 when it could not be started
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string { return "exec " + e.Name + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode is what the agent is to exit with.
func (e *ExitError) ExitCode() int { return e.Code }

// Run supervises until ctx ends or the program ends by itself.
func (p *Program) Run(ctx context.Context) {
	p.report("waiting", 0, 0, nil)
	for ctx.Err() == nil {
		mark, env, ok, next := p.inputs()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-next:
			}
			continue
		}
		res, err := p.once(ctx, mark, env)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errChanged) {
			continue
		}
		p.Log.Warn("supervised program ended by itself", "exec", p.cfg.Name, "code", res.Code, "signal", res.Signal, "err", err)
		p.Ended(p.exitError(res, err))
		return
	}
	p.report("stopped", 0, 0, nil)
}

func (p *Program) report(state string, pid, code int, err error) {
	st := &Status{Name: p.cfg.Name, State: state, PID: pid, Code: code, Since: time.Now(), Starts: p.starts, Restarts: p.cfg.OnChange}
	if err != nil {
		st.Error = err.Error()
	}
	p.status.Store(st)
	p.Tell(st)
}

// inputs is what the program depends on: a mark of the state of its files, and its
// variables. ok is false until everything is there.
func (p *Program) inputs() (mark string, env []string, ok bool, next <-chan struct{}) { //nolint:nonamedreturns // four results need names.
	now := p.State()
	if !now.Ready {
		return "", nil, false, now.Next
	}
	after := p.cfg.After
	if after == nil {
		after = now.Bundles
	}
	var b strings.Builder
	for _, name := range after {
		changed, applied := now.Applied(name)
		if !applied {
			return "", nil, false, now.Next
		}
		fmt.Fprintf(&b, "%s=%d;", name, changed.UnixNano())
	}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.EnvFrom)) {
		value, found := lookup(now.View, p.cfg.EnvFrom[name])
		if !found {
			return "", nil, false, now.Next
		}
		env = append(env, name+"="+value)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(env, "\x00")))
	fmt.Fprintf(&b, "env=%x", h.Sum64())
	return b.String(), env, true, now.Next
}

// lookup reads "config/key" from a view.
func lookup(v view.View, ref string) (string, bool) {
	name, key, _ := strings.Cut(ref, "/")
	t, ok := v.Tree(name)
	if !ok {
		return "", false
	}
	k, ok := t.Get(key)
	return string(k.Value), ok
}

// exitError is what the owner learns of an end; nil: the program ended with 0.
func (p *Program) exitError(res proc.Result, err error) *ExitError {
	if err == nil {
		return nil
	}
	code := res.Code
	switch {
	case res.Signal != "":
		code = 128
		if sig, err := proc.ParseSignal(res.Signal); err == nil {
			code += int(sig)
		}
	case code <= 0:
		code = 127
	}
	return &ExitError{Name: p.cfg.Name, Code: code, Err: err}
}

var errChanged = errors.New("inputs changed")

func (p *Program) once(ctx context.Context, mark string, env []string) (proc.Result, error) {
	args, err := p.cfg.Command.Args(command.Vars{})
	if err != nil {
		return proc.Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	grace := cmp.Or(p.cfg.KillTimeout, DefaultKillTimeout)
	var pid atomic.Int64
	p.starts++
	c := proc.Command{Args: args, Env: append(p.cfg.Command.Env.List(), env...), Stop: signalOf(p.cfg.KillSignal, syscall.SIGTERM), Grace: grace, Tee: os.Stdout, Started: func(n int) {
		pid.Store(int64(n))
		p.report("running", n, 0, nil)
		p.Log.Info("supervised program started", "exec", p.cfg.Name, "pid", n)
	}}
	var wg sync.WaitGroup
	wg.Go(func() { p.follow(ctx, cancel, mark, &pid) })
	res, err := p.Owner.Run(ctx, c)
	changed := errors.Is(context.Cause(ctx), errChanged)
	cancel(nil)
	wg.Wait()
	if changed {
		return res, errChanged
	}
	p.report("exited", 0, res.Code, err)
	return res, err
}

// signalOf is the signal of that name, which the settings have checked.
func signalOf(name string, otherwise syscall.Signal) syscall.Signal {
	if sig, err := proc.ParseSignal(name); err == nil {
		return sig
	}
	return otherwise
}

func (p *Program) follow(ctx context.Context, restart context.CancelCauseFunc, mark string, pid *atomic.Int64) {
	for {
		now, _, ok, next := p.inputs()
		if ok && now != mark {
			mark = now
			if p.cfg.Splay > 0 && !pace.Sleep(ctx, pace.Jitter(p.cfg.Splay)) {
				return
			}
			switch p.cfg.OnChange {
			case Ignore:
			case Signal:
				p.signal(int(pid.Load()))
			default:
				restart(errChanged)
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

func (p *Program) signal(pid int) {
	if pid <= 0 {
		return
	}
	if err := syscall.Kill(pid, signalOf(p.cfg.Signal, syscall.SIGHUP)); err != nil {
		p.Log.Warn("cannot signal the supervised program", "exec", p.cfg.Name, "err", err)
	}
}
