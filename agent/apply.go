package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/hook"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

// Values of CheckConfig.At, ReloadConfig.OnFailure and TemplateConfig.Drift.
const (
	atSwapped     = "swapped"
	onFailureKeep = "keep"
	driftReport   = "report"
)

// DefaultCheckTimeout bounds a check that names no timeout.
const DefaultCheckTimeout = 30 * time.Second

// Stages of an apply, as status names them.
const (
	stageRender = "render"
	stageStage  = "stage"
	stageCheck  = "check"
	stageGate   = "gate"
	stageSwap   = "swap"
	stageReload = "reload"
)

// applyMode says what an apply is for.
type applyMode int

const (
	applyView   applyMode = iota // a view, from ZooKeeper
	applyCached                  // the last known good view: only files that are missing
	applyDrift                   // look whether something else changed our files
)

// applyJob is one apply as the loop orders it.
type applyJob struct {
	bundle *bundle
	view   view.View
	old    view.View // of the apply before
	first  bool      // there was none
	force  bool      // compare every file with the disk
	owed   bool      // a reload is owed whether or not files change
	key    string    // reload queue that was joined; empty: none
	mode   applyMode
}

// applyResult is how it ended.
type applyResult struct {
	bundle     *bundle
	view       view.View
	mode       applyMode
	err        error
	stage      string
	retry      bool
	retryFirst time.Duration
	drifted    bool
	changed    int
	took       time.Duration
}

// applier renders, stages, checks, swaps and reloads. It keeps nothing of its
// own: what a bundle must remember is in its bundleWork.
type applier struct {
	log      *slog.Logger
	conds    *condition.Set
	metrics  *Metrics
	events   *event.Ring
	agentID  string
	stateDir string
	run      RunFunc
	gate     Gate
	reloads  *reloads
	owed     *owed
	lock     *swapLock
	paths    func() map[view.Source]string
	fs       *files.FS // for tests
}

// failure is an error of an apply with its stage.
type failure struct {
	stage string
	err   error
	retry time.Duration // 0: not before the inputs change
}

func (f *failure) Error() string { return f.stage + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(stage string, retry time.Duration, err error) error {
	return &failure{stage, err, retry}
}

// apply carries out a job. It always arrives at the reload queue that was
// joined for it.
func (a *applier) apply(ctx context.Context, job applyJob) applyResult {
	began := time.Now()
	r := applyResult{bundle: job.bundle, view: job.view, mode: job.mode}
	if job.mode == applyDrift {
		r.drifted = a.drifted(job.bundle)
		return r
	}
	t := &applying{applier: a, job: job, name: job.bundle.cfg.Name}
	defer t.arrive(ctx, nil)
	r.err = plain(t.run(ctx))
	r.changed, r.took = t.changed, time.Since(began)
	if f, ok := errors.AsType[*failure](r.err); ok {
		r.stage, r.retry, r.retryFirst = f.stage, f.retry > 0, f.retry
	}
	if ctx.Err() == nil {
		a.metrics.applied(t.name, r.took, r.failure() == nil)
	}
	return r
}

// applying is one apply under way.
type applying struct {
	*applier
	job     applyJob
	name    string
	tx      *files.Tx
	outputs []*output // all that the bundle renders now
	staged  []*output // those that are in tx
	gone    []string  // destinations that are no longer wanted
	arrived bool
	changed int
}

// arrive tells the reload queue that was joined, once.
func (t *applying) arrive(ctx context.Context, req *reloadRequest) {
	if t.job.key != "" && !t.arrived {
		t.arrived = true
		t.reloads.arrive(ctx, t.job.key, req)
	}
}

// run is the apply, step by step. Nothing in use changes before every check
// that can run without it has passed.
func (t *applying) run(ctx context.Context) error {
	if err := t.render(ctx); err != nil {
		return err
	}
	cfg := files.TxConfig{Bundle: files.Name(t.name), FS: t.fs}
	if !t.job.bundle.atomic() {
		cfg.StateDir = t.journalDir()
	}
	t.tx = files.Begin(cfg)
	if err := t.stage(); err != nil {
		return errors.Join(err, t.tx.Discard())
	}
	if !t.tx.Changed() {
		err := t.tx.Discard()
		t.remember()
		if err == nil && t.job.owed {
			err = t.reload(ctx, nil)
		}
		return err
	}
	if err := t.check(ctx, false); err != nil {
		return errors.Join(err, t.tx.Discard())
	}
	leave, err := t.gate.Enter(ctx, t.name, t.job.view)
	if err != nil {
		return errors.Join(fail(stageGate, 5*time.Second, err), t.tx.Discard())
	}
	err = t.use(ctx)
	leave(err)
	return err
}

// use puts the staged files in use: swap, check, reload.
func (t *applying) use(ctx context.Context) error {
	if err := t.swapAndCheck(ctx); err != nil {
		return err
	}
	for _, s := range t.tx.Files() {
		if s.Changed() {
			t.changed++
			t.log.Info("file written", "template", t.name, "file", s.Destination())
		}
	}
	err := t.reload(ctx, t.restore())
	if restored, ok := errors.AsType[*restoredError](err); ok {
		t.forgetOutputs()
		return errors.Join(fail(stageReload, 0, restored), t.tx.Commit())
	}
	if ctx.Err() != nil && err != nil {
		// We are stopping: the journal and the owed list tell the next process.
		t.tx.Keep()
		return err
	}
	t.remember()
	return errors.Join(err, t.tx.Commit())
}

// swapAndCheck swaps and runs a check that needs the files in place. When it
// fails, the old files are back before anything else happens.
func (t *applying) swapAndCheck(ctx context.Context) error {
	c := t.job.bundle.cfg.Check
	release, err := t.lock.acquire(ctx, t.job.key, c != nil && c.At == atSwapped)
	if err != nil {
		return errors.Join(fail(stageSwap, time.Second, err), t.tx.Discard())
	}
	defer release()
	if t.job.key != "" {
		if err := t.owed.add(t.name); err != nil {
			// Without the note a reload could be lost: nothing is swapped.
			return errors.Join(fail(stageSwap, time.Second, fmt.Errorf("note that a reload is owed: %w", err)), t.tx.Discard())
		}
	}
	if err := t.tx.Swap(); err != nil {
		return errors.Join(fail(stageSwap, time.Second, err), t.tx.Discard(), t.unowe())
	}
	if err := t.check(ctx, true); err != nil {
		back := t.tx.Restore()
		if back != nil {
			t.conds.Open("restore-failed", t.name, back.Error())
			t.tx.Keep()
			return errors.Join(err, back)
		}
		t.conds.Close("restore-failed", t.name)
		// Nobody was told of the new files, so nothing is owed for them.
		return errors.Join(err, t.tx.Commit(), t.unowe())
	}
	return nil
}

// unowe takes back the note unless a reload was owed before this apply.
func (t *applying) unowe() error {
	if t.job.key == "" || t.job.owed {
		return nil
	}
	return t.owed.clear(t.name)
}

// restore is what puts the old files back; nil when the settings say keep.
func (t *applying) restore() func() error {
	if r := t.job.bundle.cfg.Reload; r == nil || r.OnFailure == onFailureKeep {
		return nil
	}
	return func() error { return t.tx.Restore() }
}

// reload asks for the reload and waits for it.
func (t *applying) reload(ctx context.Context, restore func() error) error {
	if t.job.key == "" {
		return nil
	}
	cfg := t.job.bundle.cfg.Reload
	lists, err := t.lists(cfg.Command, t.touched())
	if err != nil {
		return fail(stageReload, 0, err)
	}
	ev := t.trigger(command.EventReload)
	req := &reloadRequest{
		bundle: t.name, cfg: cfg, lists: lists, trigger: ev, splay: t.job.bundle.cfg.Splay,
		zxids: zxids(t.job.view, t.job.bundle.sources), restore: restore, done: make(chan error, 1),
	}
	t.arrive(ctx, req)
	select {
	case err = <-req.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	restored, isRestored := errors.AsType[*restoredError](err)
	switch {
	case err == nil, isRestored && restored.clean:
		return errors.Join(err, t.owed.clear(t.name))
	case errors.Is(err, hook.ErrNotLeading):
		return nil // owed until this agent leads, or sees that it was done.
	}
	if isRestored {
		return err
	}
	return fail(stageReload, 10*time.Second, err)
}

// trigger is what the bundle's commands are told.
func (t *applying) trigger(event string) trigger {
	b := t.job.bundle
	return trigger{
		Event: event, Agent: t.agentID, Name: t.name, Destination: b.vars(nil).Destination,
		Version: command.ConfigVersion(t.job.view, b.sources), Changes: command.Changes(t.job.old, t.job.view, b.sources),
	}
}

func (a *applier) journalDir() string {
	if a.stateDir == "" {
		return ""
	}
	return filepath.Join(a.stateDir, "journal")
}

// zxids are the changes that a leader-only reload accounts for.
func zxids(v view.View, sources []view.Source) map[string]int64 {
	z := map[string]int64{}
	for _, s := range sources {
		if u := v.Get(s); u != nil && s.Kind != view.KindElection {
			z[s.String()] = u.Zxid()
		}
	}
	return z
}
