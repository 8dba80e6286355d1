package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/view"
)

// Values of ExecConfig.OnChange.
const (
	execSignal = "signal"
	execIgnore = "ignore"
)

// DefaultKillTimeout is the time between kill_signal and KILL for a supervised
// program.
const DefaultKillTimeout = 30 * time.Second

// execUnit makes the unit of a supervised program. It lives beside the sessions.
func (a *Agent) execUnit(c ExecConfig) unitParts {
	r := &execRunner{a: a, cfg: c}
	return unitParts{life: r.run, value: r}
}

// execKey is what a program is made of; its command is compared by its text.
func execKey(c ExecConfig) ExecConfig {
	c.Command.Args, c.Position = nil, ""
	return c
}

// execStatus lists the supervised programs.
func (a *Agent) execStatus() []web.ExecStatus {
	list := []web.ExecStatus{}
	for _, c := range a.cfg.Load().Execs {
		if r, ok := a.sup.value("exec", c.Name).(*execRunner); ok {
			if st := r.state.Load(); st != nil {
				list = append(list, *st)
			}
		}
	}
	return list
}

// execRunner supervises one program: started when its files are first in
// place, restarted or signalled when they or its variables change. When it ends
// by itself the agent ends, too, with its exit code.
type execRunner struct {
	a      *Agent
	cfg    ExecConfig
	state  atomic.Pointer[web.ExecStatus]
	starts int
}

// tell publishes a state.
func (r *execRunner) tell(state string, pid, code int, err error) {
	st := &web.ExecStatus{Name: r.cfg.Name, State: state, PID: pid, Code: code, Since: time.Now(), Starts: r.starts, Restarts: r.cfg.OnChange}
	if err != nil {
		st.Error = err.Error()
	}
	r.state.Store(st)
	r.a.metrics.exec(st)
}

// inputs is what the program depends on: a mark of its files' state, and its
// variables. ok is false until everything is there.
func (r *execRunner) inputs() (mark string, env []string, ok bool, next <-chan struct{}) { //nolint:nonamedreturns // four results need names.
	snap := r.a.loop.snapshot.Load()
	if !snap.complete && !snap.cached {
		return "", nil, false, snap.next
	}
	var b strings.Builder
	for _, name := range r.after(snap) {
		rep, known := snap.bundles[name]
		if !known || (rep.State != "ok" && rep.LastApply.IsZero()) {
			return "", nil, false, snap.next
		}
		if rep.State != "ok" && len(rep.Files) == 0 {
			return "", nil, false, snap.next
		}
		fmt.Fprintf(&b, "%s=%d;", name, rep.LastChange.UnixNano())
	}
	for _, name := range slices.Sorted(maps.Keys(r.cfg.EnvFrom)) {
		value, found := lookupKey(snap.view, r.cfg.EnvFrom[name])
		if !found {
			return "", nil, false, snap.next
		}
		env = append(env, name+"="+value)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(env, "\x00")))
	fmt.Fprintf(&b, "env=%x", h.Sum64())
	return b.String(), env, true, snap.next
}

// after lists the bundles that the program waits for: all without a list.
func (r *execRunner) after(snap *snapshot) []string {
	if r.cfg.After != nil {
		return r.cfg.After
	}
	return snap.order
}

// lookupKey reads "config/key" from a view.
func lookupKey(v view.View, ref string) (string, bool) {
	name, key, _ := strings.Cut(ref, "/")
	t, ok := v.Tree(name)
	if !ok {
		return "", false
	}
	k, ok := t.Get(key)
	return string(k.Value), ok
}

// run supervises until ctx ends.
func (r *execRunner) run(ctx context.Context) {
	r.tell("waiting", 0, 0, nil)
	for ctx.Err() == nil {
		mark, env, ok, next := r.inputs()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-next:
			}
			continue
		}
		res, err := r.once(ctx, mark, env)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errChanged) {
			continue
		}
		r.a.log.Warn("supervised program ended by itself", "exec", r.cfg.Name, "code", res.Code, "signal", res.Signal, "err", err)
		r.a.programEnded(r.cfg.Name, res, err)
		return
	}
	r.tell("stopped", 0, 0, nil)
}

// ExecError is returned by Run when a supervised program ended by itself and
// not with 0.
type ExecError struct {
	Name string
	Code int // as a shell reports it: 128 and the signal's number, 127 when it could not be started
	Err  error
}

// Error implements error.
func (e *ExecError) Error() string { return "exec " + e.Name + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *ExecError) Unwrap() error { return e.Err }

// ExitCode is what this program is to exit with.
func (e *ExecError) ExitCode() int { return e.Code }

// programEnded ends the agent: it was there for its program.
func (a *Agent) programEnded(name string, res proc.Result, err error) {
	if err == nil {
		a.Leave()
		return
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
	select {
	case a.process.failed <- &ExecError{Name: name, Code: code, Err: err}:
	default: // another program was first.
	}
}

// killSignal is what ends the program.
func (c ExecConfig) killSignal() syscall.Signal {
	sig, err := proc.ParseSignal(c.KillSignal)
	if err != nil {
		return syscall.SIGTERM
	}
	return sig
}

// errChanged ends a program that is to be started with new inputs.
var errChanged = errors.New("inputs changed")

// once runs the program until it exits or its inputs change.
func (r *execRunner) once(ctx context.Context, mark string, env []string) (proc.Result, error) {
	args, err := r.cfg.Command.Args(command.Vars{})
	if err != nil {
		return proc.Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	grace := r.cfg.KillTimeout
	if grace <= 0 {
		grace = DefaultKillTimeout
	}
	var pid atomic.Int64
	r.starts++
	c := proc.Command{Args: args, Env: append(r.cfg.Command.Env.List(), env...), Stop: r.cfg.killSignal(), Grace: grace, Tee: os.Stdout, Started: func(p int) {
		pid.Store(int64(p))
		r.tell("running", p, 0, nil)
		r.a.log.Info("supervised program started", "exec", r.cfg.Name, "pid", p)
	}}
	var wg sync.WaitGroup
	wg.Go(func() { r.follow(ctx, cancel, mark, &pid) })
	res, err := r.a.plainRun(ctx, c)
	changed := errors.Is(context.Cause(ctx), errChanged)
	cancel(nil)
	wg.Wait()
	if changed {
		return res, errChanged
	}
	r.tell("exited", 0, res.Code, err)
	return res, err
}

// follow waits for other inputs and then acts as on_change says.
func (r *execRunner) follow(ctx context.Context, restart context.CancelCauseFunc, mark string, pid *atomic.Int64) {
	for {
		now, _, ok, next := r.inputs()
		if ok && now != mark {
			mark = now
			if r.cfg.Splay > 0 && !pace.Sleep(ctx, pace.Jitter(r.cfg.Splay)) {
				return
			}
			switch r.cfg.OnChange {
			case execIgnore:
			case execSignal:
				r.signal(int(pid.Load()))
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

// signal sends the program the signal for changed inputs.
func (r *execRunner) signal(pid int) {
	name := r.cfg.Signal
	if name == "" {
		name = "HUP"
	}
	sig, err := proc.ParseSignal(name)
	if err != nil || pid <= 0 {
		return
	}
	if err := syscall.Kill(pid, sig); err != nil {
		r.a.log.Warn("supervised program not signalled", "exec", r.cfg.Name, "err", err)
	}
}
