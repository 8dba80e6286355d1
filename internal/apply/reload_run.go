package apply

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// retried runs one command, again with back-off as often as it may.
func (r *reloads) retried(ctx context.Context, req *reloadRequest, args []string) error {
	var err error
	for try := 0; try <= req.cfg.Retry; try++ {
		if try > 0 && !pace.Sleep(ctx, pace.Backoff(try, max(req.cfg.MinInterval, 500*time.Millisecond), 30*time.Second)) {
			return context.Cause(ctx)
		}
		if err = r.once(ctx, req, args); err == nil {
			return nil
		}
		if _, refused := errors.AsType[*refusedError](err); refused || ctx.Err() != nil {
			break
		}
	}
	return err
}

// once runs one command and, where the settings ask for it, waits until the
// master has new workers.
func (r *reloads) once(ctx context.Context, req *reloadRequest, args []string) error {
	c := req.trigger.Command(req.cfg.Command, args)
	c.Timeout = cmp.Or(max(req.cfg.Timeout, 0), DefaultReloadTimeout)
	verification := req.cfg.Verify.verify()
	run := r.engine.Options.Run
	if leader := req.cfg.Leader; leader != "" {
		run = func(ctx context.Context, c proc.Command) (proc.Result, error) {
			return r.engine.Fleet.RunLeading(ctx, leader, c)
		}
	}
	began := time.Now()
	res, err := run(ctx, c)
	took := time.Since(began)
	if err != nil {
		r.engine.Log.Warn("reload failed", "template", req.bundle, "code", res.Code, "took", took, "err", err)
	} else {
		r.engine.Log.Info("reload finished", "template", req.bundle, "code", res.Code, "took", took)
		if verification != nil {
			err = verification.wait(ctx)
		}
	}
	s := ReloadStatus{At: began, Took: view.Seconds(took), Code: res.Code}
	if err != nil {
		s.Error = err.Error()
	}
	r.note(req.bundle, s)
	return err
}

// note keeps the newest run of a bundle's command.
func (r *reloads) note(bundle string, s ReloadStatus) {
	var err error
	if s.Error != "" {
		err = &reloadError{s.Error, s.Code}
	}
	r.engine.Conds.Set(condition.ReloadFailed, bundle, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[string]ReloadStatus{}
	}
	r.runs[bundle] = s
}

// reloadError is why the newest run of a reload failed.
type reloadError struct {
	text string
	code int
}

func (e *reloadError) Error() string   { return e.text }
func (e *reloadError) ExitStatus() int { return e.code }

// share notes the run of one bundle for another with the same command.
func (r *reloads) share(from, to string) {
	if s := r.newest(from); s != nil {
		r.note(to, *s)
	}
}

// newest is the newest run of a bundle's command; nil when there was none.
func (r *reloads) newest(bundle string) *ReloadStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.runs[bundle]; ok {
		return &s
	}
	return nil
}
