package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The program of an exec block.
//
// Steps: the program starts when the files and keys that it needs are there for the
// first time. When they change it is restarted or signalled, as on_change says, after
// a random delay. When it ends by itself, the agent ends, too.
//
// Guaranteed: one process at a time; a restart waits for the end of the previous
// process, by KILL after the grace time; a change during a delay is not lost; no signal
// ends a program that comes up.
//
// Not guaranteed: a restart for each change. Changes that come together are one.

// Values of ExecConfig.OnChange; any other is restart.
const (
	onChangeSignal = "signal"
	onChangeIgnore = "ignore"
)

const defaultKillTimeout = 30 * time.Second

// ExecConfig is an exec block.
type ExecConfig struct {
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

type program struct {
	a      *Agent
	cfg    ExecConfig
	status atomic.Pointer[show.ExecStatus] // nil: it does not run yet
	starts int
}

// exitError is how a program ended by itself.
type exitError struct {
	Name string
	Code int // as a shell reports it: 128 and the signal's number, 127 when it could not be started
	Err  error
}

func (e *exitError) Error() string { return "exec " + e.Name + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *exitError) Unwrap() error { return e.Err }

// ExitCode is the code with which the agent must exit.
func (e *exitError) ExitCode() int { return e.Code }

// run supervises until ctx ends or the program ends by itself.
func (p *program) run(ctx context.Context) {
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
		p.a.log.Warn("supervised program ended by itself", "exec", p.cfg.Name, "code", res.Code, "signal", res.Signal, "err", err)
		if err == nil {
			p.a.Leave() // the agent was there for its program
			return
		}
		code := res.Code
		switch {
		case res.Signal != "":
			code = 128 + int(signalOf(res.Signal, 0))
		case code <= 0:
			code = 127
		}
		select {
		case p.a.process.failed <- &exitError{Name: p.cfg.Name, Code: code, Err: err}:
		default: // another program was first.
		}
		return
	}
	p.report("stopped", 0, 0, nil)
}

func (p *program) report(state string, pid, code int, err error) {
	st := &show.ExecStatus{Name: p.cfg.Name, State: state, PID: pid, Code: code, Since: time.Now(), Starts: p.starts, Restarts: p.cfg.OnChange}
	if err != nil {
		st.Error = err.Error()
	}
	p.status.Store(st)
	p.a.metrics.exec(st)
}

// inputs is what the program depends on: a mark of the state of its files, and its
// variables. ok is false until everything is there.
func (p *program) inputs() (mark string, env []string, ok bool, next <-chan struct{}) { //nolint:nonamedreturns // four results need names.
	now := p.a.loop.snapshot.Load()
	if !now.complete && !now.cached {
		return "", nil, false, now.next
	}
	var b strings.Builder
	for _, bundle := range now.bundles {
		if p.cfg.After != nil && !slices.Contains(p.cfg.After, bundle.Config.Name) {
			continue
		}
		r := bundle.report
		if r.State != "ok" && (r.LastApply.IsZero() || len(r.Files) == 0) { // They are not in place.
			return "", nil, false, now.next
		}
		fmt.Fprintf(&b, "%s=%d;", bundle.Config.Name, r.LastChange.UnixNano())
	}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.EnvFrom)) {
		config, key, _ := strings.Cut(p.cfg.EnvFrom[name], "/")
		tree, _ := now.view.Tree(config)
		if tree == nil {
			return "", nil, false, now.next
		}
		value, found := tree.Get(key)
		if !found {
			return "", nil, false, now.next
		}
		env = append(env, name+"="+string(value.Value))
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(env, "\x00")))
	fmt.Fprintf(&b, "env=%x", h.Sum64())
	return b.String(), env, true, now.next
}

var errChanged = errors.New("inputs changed")

func (p *program) once(ctx context.Context, mark string, env []string) (proc.Result, error) {
	args, err := p.cfg.Command.Args(command.Vars{})
	if err != nil {
		return proc.Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var pid atomic.Int64
	p.starts++
	c := proc.Command{
		Args: args, Env: append(p.cfg.Command.Env.List(), env...), Tee: os.Stdout,
		Stop: signalOf(p.cfg.KillSignal, syscall.SIGTERM), Grace: cmp.Or(p.cfg.KillTimeout, defaultKillTimeout),
		Started: func(n int) {
			pid.Store(int64(n))
			p.report("running", n, 0, nil)
			p.a.log.Info("supervised program started", "exec", p.cfg.Name, "pid", n)
		},
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.follow(ctx, cancel, mark, &pid) })
	res, err := p.a.plainRun(ctx, c)
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

// comesUp is how long a program that has started may take until it catches the signal of
// a change, which would end it before.
const comesUp = 10 * time.Second

func (p *program) follow(ctx context.Context, restart context.CancelCauseFunc, mark string, pid *atomic.Int64) {
	began := time.Now()
	for {
		now, _, ok, next := p.inputs()
		if ok && now != mark {
			mark = now
			if p.cfg.Splay > 0 && !pace.Sleep(ctx, pace.Jitter(p.cfg.Splay)) {
				return
			}
			switch p.cfg.OnChange {
			case onChangeIgnore:
			case onChangeSignal:
				sig := signalOf(p.cfg.Signal, syscall.SIGHUP)
				for time.Since(began) < comesUp && !proc.Catches(int(pid.Load()), sig) {
					if !pace.Sleep(ctx, 20*time.Millisecond) {
						return
					}
				}
				if n := int(pid.Load()); n > 0 {
					if err := syscall.Kill(n, sig); err != nil {
						p.a.log.Warn("cannot signal the supervised program", "exec", p.cfg.Name, "err", err)
					}
				}
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

func (a *Agent) execStatus() []show.ExecStatus {
	list := []show.ExecStatus{}
	for _, c := range a.cfg.Load().Execs {
		if p, ok := kindExec.of(a.sup, c.Name); ok {
			if st := p.status.Load(); st != nil {
				list = append(list, *st)
			}
		}
	}
	return list
}

// moveWithin is how long a member stays in its previous place while it cannot join the new
// one.
const moveWithin = time.Minute

// serviceUnit makes a registrar. One that replaces another takes over what its checks
// know, and its znodes in the same groups.
func (a *Agent) serviceUnit(c registry.ServiceConfig, old any) unitParts {
	c.Logger, c.Metrics, c.Run = a.log, a.metrics.of.registry, a.checkRun
	c.Changed = func() { pace.Notify(a.wake.services) }
	if a.first.StateDir != "" && c.StateFile == "" {
		c.StateFile = filepath.Join(a.first.StateDir, "maintenance-"+c.Name+".json")
	}
	c.Previous, _ = old.(*registry.Registrar)
	r := registry.NewRegistrar(c)
	return unitParts{
		run:   func(ctx context.Context, s *session.Session, _ func(view.Update)) error { return r.Run(ctx, s) },
		value: r,
		life:  func(ctx context.Context) { _ = r.RunChecks(ctx) },
		leave: func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+drainMargin)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				a.log.Warn("service did not drain", "service", c.Name, "err", err)
			}
		},
		joined: func(ctx context.Context, previous any) {
			if old, ok := previous.(*registry.Registrar); !ok || !old.Status().Registered {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, moveWithin)
			defer cancel()
			select {
			case <-r.Joined():
			case <-ctx.Done():
			}
		},
	}
}

func (a *Agent) checkRun(ctx context.Context, args []string, limit int) (output string, code int, err error) { //nolint:nonamedreturns // a string and an int need names.
	res, err := a.plainRun(ctx, proc.Command{Args: args, Env: a.cfg.Load().Env.List(), OutputLimit: limit})
	if e, ok := errors.AsType[*proc.ExitError](err); ok && e.Cause == nil && res.Signal == "" {
		return res.Output, res.Code, nil
	}
	return res.Output, res.Code, err
}

// followServices keeps the conditions of services in step with their registrars,
// and the record of this host with its maintenance.
func (a *Agent) followServices(ctx context.Context) {
	previous := ""
	for {
		list := a.services()
		a.announceServices(list)
		reason, maintained := a.hostMaint.Reason()
		var b strings.Builder
		b.WriteString(reason)
		for _, s := range list {
			fmt.Fprintf(&b, "\x00%s %s %d", s.Name, s.State, s.Since.Unix())
		}
		if b.String() != previous { // mostly it is one more result of a check
			previous = b.String()
			pace.Notify(a.wake.record)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake.services:
		case <-maintained:
		}
	}
}

// announceServices opens a condition for each service that its checks have given up,
// and for each that is not in ZooKeeper although it should be.
func (a *Agent) announceServices(list []registry.ServiceStatus) {
	var critical, missing []string
	// A read-only server registers nothing. The members of the session that waits for a
	// majority are still there, and the condition zookeeper-read-only says the rest.
	readOnly := a.sessions.Status().State == session.ReadOnly
	for _, s := range list {
		if c := failedCheck(s); c != nil && s.Maintenance == nil {
			critical = append(critical, s.Name)
			text := "check " + cmp.Or(c.Name, c.Kind) + " has failed: " + strings.Join(strings.Fields(c.Output), " ")
			a.conds.OpenAs(condition.ServiceCritical, condition.Condition{Subject: s.Name, Text: strings.TrimSuffix(text, ": "), Exit: c.Exit})
			continue
		}
		if !s.Registered && !readOnly && s.Maintenance == nil && s.State != registry.StateDraining && s.State != registry.StateLeft {
			missing = append(missing, s.Name)
			a.conds.Open(condition.ServiceNotRegistered, s.Name, whyMissing(s))
		}
	}
	a.conds.Retain(condition.ServiceCritical, func(name string) bool { return slices.Contains(critical, name) })
	a.conds.Retain(condition.ServiceNotRegistered, func(name string) bool { return slices.Contains(missing, name) })
}

func whyMissing(s registry.ServiceStatus) string {
	switch {
	case s.Error != "":
		return s.Error
	case s.State == registry.StateUnknown && len(s.Checks) > 0:
		return "its checks have not passed yet"
	}
	return "it is being registered"
}
