package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// Options are what an engine works with. Only Run is needed.
type Options struct {
	AgentID  string
	StateDir string // empty: no journal, nothing is remembered
	Log      *slog.Logger
	Conds    *condition.Set
	Events   *event.Ring
	Observer Observer
	Run      command.Run
	Gate     Gate
	Fleet    Fleet
	FS       *files.FS // for tests
}

// Observer counts what happens, for metrics.
type Observer interface {
	Rendered(bundle, result string)
	Applied(bundle string, took time.Duration, ok bool)
	Reloaded(bundle, result string)
}

// Fleet is what reloads need of the other hosts.
type Fleet interface {
	// Term returns the term in which this agent leads the election; 0: none.
	Term(election string) int64
	// RunLeader runs a command under the lease of the election's term.
	RunLeader(ctx context.Context, election string, c proc.Command) (proc.Result, error)
	// Ledger reports whether the fleet has done a leader-only reload already.
	// If not, the caller tells finish how it ended.
	Ledger(ctx context.Context, r LeaderReload) (done bool, finish func(error), err error)
	// Permit waits for a permit of a rolling reload.
	Permit(ctx context.Context, bundle string, cfg *RollingConfig) (release func(error), err error)
}

// LeaderReload is a reload that only the leader runs.
type LeaderReload struct {
	Election string
	Bundle   string
	Zxids    map[string]int64 // of the sources that were rendered
	Digest   string           // of the files that are in place
}

// Engine applies bundles. What a bundle must remember is in the [Bundle]. It
// is safe for concurrent use, for one job of a bundle at a time.
type Engine struct {
	Options

	reloads *reloads
	owed    *owed
	lock    *swapLock
}

// New makes an engine. It reads what a former process owes.
func New(o Options) *Engine {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Conds == nil {
		o.Conds = &condition.Set{}
	}
	if o.Events == nil {
		o.Events = event.NewRing()
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Gate == nil {
		o.Gate = open{}
	}
	e := &Engine{Options: o, owed: newOwed(o.StateDir), lock: newSwapLock(o.StateDir)}
	e.reloads = &reloads{engine: e, queues: map[string]*reloadQueue{}}
	return e
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Rendered(string, string)             {}
func (nobody) Applied(string, time.Duration, bool) {}
func (nobody) Reloaded(string, string)             {}

// Stages of an apply, as status names them.
const (
	stageRender = "render"
	stageStage  = "stage"
	stageCheck  = "check"
	stageGate   = "gate"
	stageSwap   = "swap"
	stageReload = "reload"
)

// Mode says what an apply is for.
type Mode int

// The modes.
const (
	ModeView   Mode = iota // a view, from ZooKeeper
	ModeCached             // the last known good view: only files that are missing
	ModeDrift              // look whether something else changed our files
)

// Job is one apply.
type Job struct {
	Bundle *Bundle
	View   view.View
	Old    view.View // of the apply before
	First  bool      // there was none
	Force  bool      // compare every file with the disk
	Mode   Mode

	owed bool   // a reload is owed whether or not files change
	key  string // reload queue that was joined; empty: none
}

// Result is how an apply ended.
type Result struct {
	View    view.View // that was applied
	Mode    Mode
	Err     error
	Stage   string        // where it failed
	Retry   time.Duration // when to try again at first; 0: not before the inputs change
	Drifted bool          // something else changed files that are to be repaired
	Changed int           // files
	Took    time.Duration
	Files   []string // that the bundle renders now
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

// Join announces jobs of bundles that begin together, before the first of them
// runs: their reloads run once, after the last of them has swapped its files.
// It gives back the jobs for [Engine.Run].
func (e *Engine) Join(jobs ...*Job) {
	for _, j := range jobs {
		if j.key = j.Bundle.reloadKey(); j.key != "" {
			e.reloads.join(j.key)
		}
	}
}

// Run carries out a job that was given to [Engine.Join]; one that looks for
// drift needs none.
func (e *Engine) Run(ctx context.Context, job Job) Result {
	began := time.Now()
	r := Result{View: job.View, Mode: job.Mode}
	if job.Mode == ModeDrift {
		r.Drifted = e.drifted(job.Bundle)
		return r
	}
	job.owed = e.owed.has(job.Bundle.Config.Name)
	t := &applying{Engine: e, job: job, name: job.Bundle.Config.Name}
	defer t.arrive(ctx, nil)
	r.Err = plain(t.run(ctx))
	r.Changed, r.Took, r.Files = t.changed, time.Since(began), job.Bundle.files()
	if f, ok := errors.AsType[*failure](r.Err); ok {
		r.Stage, r.Retry = f.stage, f.retry
	}
	if ctx.Err() == nil {
		e.Observer.Applied(t.name, r.Took, r.Failure() == nil)
	}
	return r
}

// Wait waits for the reloads that run.
func (e *Engine) Wait() { e.reloads.wg.Wait() }

// OwedSince is since when the reload of a bundle is owed; zero: it is not.
func (e *Engine) OwedSince(bundle string) time.Time { return e.owed.at(bundle) }

// LastReload is the newest run of a bundle's reload; nil when there was none.
func (e *Engine) LastReload(bundle string) *ReloadStatus { return e.reloads.newest(bundle) }

// applying is one apply under way.
type applying struct {
	*Engine

	job     Job
	name    string
	tx      *files.Tx
	outputs []*output // all that the bundle renders now
	staged  []*output // those that are in tx
	gone    []string  // destinations that are no longer wanted
	made    []string  // directories, the newest first
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
	if err := t.finishFormer(); err != nil {
		return fail(stageSwap, 5*time.Second, err)
	}
	cfg := files.TxConfig{Bundle: files.Name(t.name), FS: t.FS}
	if !t.job.Bundle.atomic() {
		cfg.StateDir = t.journalDir()
		cfg.Durable = t.job.Bundle.Config.Check != nil && t.job.Bundle.Config.Check.At == atSwapped
	}
	t.tx = files.Begin(cfg)
	if t.job.First {
		t.sweep()
	}
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
	leave, err := t.Gate.Enter(ctx, t.name, t.job.View)
	if err != nil {
		return errors.Join(fail(stageGate, 5*time.Second, err), t.tx.Discard())
	}
	err = t.use(ctx)
	leave(err)
	return err
}

// finishFormer puts the old files back that a former apply could not.
func (t *applying) finishFormer() error {
	if !files.Pending(t.journalDir(), files.Name(t.name)) {
		return nil
	}
	list, err := files.Recover(files.TxConfig{Bundle: files.Name(t.name), StateDir: t.journalDir(), FS: t.FS})
	t.Conds.Set("restore-failed", t.name, err)
	if err != nil {
		return err
	}
	for _, r := range list {
		err = errors.Join(err, r.Tx.Restore(), r.Tx.Commit())
	}
	t.forgetOutputs()
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
			t.Log.Info("file written", "template", t.name, "file", s.Destination())
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
	c := t.job.Bundle.Config.Check
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
			t.Conds.Open("restore-failed", t.name, back.Error())
			t.tx.Keep()
			return errors.Join(err, back)
		}
		t.Conds.Close("restore-failed", t.name)
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
	if r := t.job.Bundle.Config.Reload; r == nil || r.OnFailure == onFailureKeep {
		return nil
	}
	return func() error { return t.tx.Restore() }
}

// reload asks for the reload and waits for it.
func (t *applying) reload(ctx context.Context, restore func() error) error {
	if t.job.key == "" {
		return nil
	}
	cfg := t.job.Bundle.Config.Reload
	lists, err := t.lists(cfg.Command, t.touched())
	if err != nil {
		return fail(stageReload, 0, err)
	}
	ev := t.trigger(command.EventReload)
	req := &reloadRequest{
		bundle: t.name, cfg: cfg, lists: lists, trigger: ev, splay: t.job.Bundle.Config.Splay,
		zxids: zxids(t.job.View, t.job.Bundle.Sources), restore: restore, done: make(chan error, 1),
	}
	if cfg.Leader != "" {
		req.digest = t.filesDigest()
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
	case errors.Is(err, command.ErrNotLeading):
		return nil // owed until this agent leads, or sees that it was done.
	}
	if isRestored {
		return err
	}
	return fail(stageReload, 10*time.Second, err)
}

// trigger is what the bundle's commands are told.
func (t *applying) trigger(event string) command.Trigger {
	b := t.job.Bundle
	return command.Trigger{
		Event: event, Agent: t.AgentID, Name: t.name, Destination: b.vars(nil).Destination,
		Version: command.ConfigVersion(t.job.View, b.Sources), Changes: command.Changes(t.job.Old, t.job.View, b.Sources),
	}
}

func (e *Engine) journalDir() string {
	if e.StateDir == "" {
		return ""
	}
	return filepath.Join(e.StateDir, "journal")
}

// filesDigest tells the contents of the bundle's files apart from any others,
// wherever a host keeps the files.
func (t *applying) filesDigest() string {
	var list strings.Builder
	for _, o := range t.outputs {
		fmt.Fprintf(&list, "%q %s\n", o.eachKey(), files.Digest(o.data))
	}
	return files.Digest([]byte(list.String()))
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

// Recover puts right what a killed process left: files of a bundle that were
// swapped in part, and reloads that it owed. It is called once, before the
// first job.
func (e *Engine) Recover(bundles []Config) {
	if e.StateDir == "" {
		return
	}
	for _, dir := range []string{"journal", "staged", "files"} {
		if err := os.MkdirAll(filepath.Join(e.StateDir, dir), 0o700); err != nil {
			e.Conds.Open("state-dir", e.StateDir, err.Error())
			return
		}
	}
	// Copies for checks of a former process are of no use to anybody.
	if left, err := filepath.Glob(filepath.Join(e.StateDir, "staged", "bundle-*")); err == nil {
		for _, dir := range left {
			_ = os.RemoveAll(dir)
		}
	}
	list, err := files.Recover(files.TxConfig{StateDir: e.journalDir(), FS: e.FS})
	e.Conds.Set("recover-failed", "", err)
	for _, r := range list {
		name := ""
		for i := range bundles {
			if files.Name(bundles[i].Name) == r.Bundle {
				name = bundles[i].Name
			}
		}
		if r.Err != nil {
			e.Conds.Open("restore-failed", cmp.Or(name, r.Bundle), r.Err.Error())
			continue
		}
		e.Log.Warn("change of a former process put right", "template", name, "new", r.New, "reload", r.Reload)
		if r.Reload && name != "" {
			if err := e.owed.add(name); err != nil {
				e.Log.Warn("reload that is owed not noted", "template", name, "err", err)
				r.Tx.Keep()
				continue
			}
		}
		if err := r.Tx.Commit(); err != nil {
			e.Log.Warn("journal not removed", "template", name, "err", err)
		}
	}
}
