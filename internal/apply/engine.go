package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
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
	// If not, the caller passes the result to finish.
	Ledger(ctx context.Context, r LeaderReload) (done bool, finish func(error), err error)
	// Permit waits for a permit of a rolling reload. The caller gives it back
	// by release, once. An error that it passes halts the bundle on all hosts.
	Permit(ctx context.Context, bundle string, cfg *RollingConfig) (release func(failed error), err error)
}

// LeaderReload is a reload that only the leader runs.
type LeaderReload struct {
	Election string
	Bundle   string
	Zxids    map[string]int64 // of the sources that were rendered
	Digest   string           // of the files that are in place
	Repair   bool             // the files are as before, after somebody else changed them
}

// Engine applies bundles. What a bundle must remember is in the [Bundle]. It
// is safe for concurrent use, for one job of a bundle at a time.
type Engine struct {
	Options

	reloads *reloads
	owed    *owed
	lives   *lives
	lock    *swapLock

	mu        sync.Mutex                 // mu guards recovered.
	recovered map[string]files.Recovered // changes of a former process, by bundle, for its first apply
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
	e := &Engine{Options: o, lock: newSwapLock(o.StateDir), recovered: map[string]files.Recovered{}}
	e.owed = newOwed(o.StateDir, func() *files.FS { return e.FS })
	e.lives = newLives(o.StateDir, func() *files.FS { return e.FS })
	e.reloads = &reloads{engine: e, queues: map[string]*reloadQueue{}}
	return e
}

// nobody is an observer that does nothing.
type nobody struct{}

func (nobody) Rendered(string, string)             {}
func (nobody) Applied(string, time.Duration, bool) {}
func (nobody) Reloaded(string, string)             {}

// Stages of an apply, as status names them.
const (
	stageRender = "render"
	stageStage  = "stage"
	stageCheck  = "check"
	stagePermit = "permit"
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
	ModeReload             // reload what is in place, because that is owed
)

// Job is one apply.
type Job struct {
	Bundle *Bundle
	View   view.View
	Old    view.View // of the apply before
	First  bool      // there was none
	Force  bool      // compare every file with the disk
	Mode   Mode
	// Newest returns the newest view; nil: View stays it. It is asked after a
	// wait for a permit, so that no stale version is put in use.
	Newest func() view.View
	// Replaced ends when other settings take the place of the bundle; nil:
	// never. It ends a wait for a permit.
	Replaced context.Context
	// Granted ends when the host has a turn of a rollout that concerns the bundle;
	// nil: never. The rollout bounds how many hosts change, and halts them: the
	// bundle needs no permit any more, and its failure halts no rolling reload.
	Granted context.Context
	// Back says that the host goes back to View: a change that a former process
	// has left unfinished is taken back, and the program does not read it again.
	Back bool

	owed bool   // a reload is owed whether or not files change
	key  string // reload queue that was joined; empty: none
}

// Result is how an apply ended.
type Result struct {
	View  view.View // that was applied
	Mode  Mode
	Err   error
	Stage string        // where it failed
	Retry time.Duration // when to try again at first; 0: not before the inputs change
	// ReloadOnly: the retry is to reload only. The files are back, and the
	// program has not read them.
	ReloadOnly bool
	Drifted    bool // something else changed files that are to be repaired
	Changed    int  // files
	Took       time.Duration
	Files      []string // that the bundle renders now
	// Wrote are the files that are in place now and were not before; all that the
	// bundle renders, after its first apply.
	Wrote []Planned
}

// failure is an error of an apply with its stage.
type failure struct {
	stage string
	err   error
	retry time.Duration // 0: not before the inputs change
	// reload: only the reload is to be tried again. The files are the old ones,
	// which the program has not read yet.
	reload bool
}

func (f *failure) Error() string { return f.stage + " failed: " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(stage string, retry time.Duration, err error) error {
	return &failure{stage: stage, err: err, retry: retry}
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
	if job.Mode == ModeReload {
		r.Err = plain(t.reload(ctx, nil))
	} else {
		r.Err = plain(t.pay(ctx, t.run(ctx)))
	}
	if r.View = t.job.View; r.Err != nil {
		// What was rendered may not be what is in place: the next apply
		// renders and compares everything.
		job.Bundle.outputs, job.Bundle.look = nil, true
	}
	r.Changed, r.Took, r.Files = t.changed, time.Since(began), job.Bundle.files()
	r.Wrote = t.wrote(r.Err)
	if f, ok := errors.AsType[*failure](r.Err); ok {
		r.Stage, r.Retry, r.ReloadOnly = f.stage, f.retry, f.reload
	} else if r.Err != nil {
		r.Stage, r.Retry = stageSwap, 5*time.Second // A file of our own could not be written.
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
	taken   []string  // destinations that something else wrote
	gone    []string  // destinations that are no longer wanted
	made    []string  // directories, the newest first
	arrived bool
	changed int
	release func(failed error) // of the permit; nil: there is none
	failed  error              // halts a rolling reload
}

// arrive reports to the reload queue that was joined, once.
func (t *applying) arrive(ctx context.Context, req *reloadRequest) {
	if t.job.key != "" && !t.arrived {
		t.arrived = true
		t.reloads.arrive(ctx, t.job.key, req)
	}
}

// run is the apply, step by step. Nothing in use changes before every check
// that can run without it has passed.
func (t *applying) run(ctx context.Context) error {
	defer func() {
		if t.release != nil {
			t.release(t.failed)
		}
	}()
	if err := t.finishFormer(ctx); err != nil {
		return err
	}
	for {
		if err := t.prepare(ctx); err != nil {
			return err
		}
		if !t.tx.Changed() {
			t.remember()
			err := t.tx.Discard()
			if err != nil || !t.job.owed {
				return err
			}
			if _, err = t.permit(ctx); err != nil {
				return err
			}
			return t.afterSwap(ctx, nil)
		}
		if t.lives.refused(t.name, t.content) {
			return errors.Join(fail(stageReload, 0, errLives), t.tx.Discard())
		}
		waited, err := t.permit(ctx)
		if err != nil {
			return errors.Join(err, t.tx.Discard())
		}
		if !waited || !t.newer() {
			break
		}
		if err := t.tx.Discard(); err != nil {
			return err
		}
	}
	if err := t.claim(); err != nil {
		return errors.Join(fail(stageStage, time.Second, err), t.tx.Discard())
	}
	return t.use(ctx)
}

// pay runs a reload that was owed before the apply, when the apply failed
// before its own: the program has not read what is in place.
func (t *applying) pay(ctx context.Context, err error) error {
	f, failed := errors.AsType[*failure](err)
	if err == nil || failed && (f.stage == stageReload || f.stage == stagePermit) || ctx.Err() != nil || t.job.Mode == ModeCached {
		return err
	}
	if !t.job.owed || !t.owed.has(t.name) || t.job.Bundle.Config.Reload.Rolling != nil || files.Pending(t.journalDir(), files.Name(t.name)) {
		return err
	}
	if t.arrived {
		t.reloads.join(t.job.key)
		t.arrived = false
	}
	return errors.Join(err, t.reload(ctx, nil))
}

// prepare renders, stages and checks.
func (t *applying) prepare(ctx context.Context) error {
	t.outputs, t.staged, t.gone, t.taken = nil, nil, nil, nil
	if err := t.render(ctx); err != nil {
		return err
	}
	b := t.job.Bundle
	cfg := files.TxConfig{Bundle: files.Name(t.name), FS: t.FS, Durable: b.Config.Check != nil && b.Config.Check.At == atSwapped}
	if !b.atomic() {
		cfg.StateDir = t.journalDir()
	}
	t.tx = files.Begin(cfg)
	if err := t.stage(); err != nil {
		return errors.Join(err, t.tx.Discard())
	}
	t.tellTaken()
	if !t.tx.Changed() {
		return nil
	}
	if err := t.check(ctx, false); err != nil {
		return errors.Join(err, t.tx.Discard())
	}
	return nil
}

// permit takes the permit of a rolling reload before anything in use changes:
// a host that must not start keeps its old file. It reports whether it waited
// for one. The other bundles of the same command do not wait for this one.
func (t *applying) permit(ctx context.Context) (bool, error) {
	r := t.job.Bundle.Config.Reload
	if t.granted() {
		if t.release != nil {
			t.release(nil)
			t.release = nil
		}
		return false, nil
	}
	if t.job.key == "" || r.Rolling == nil || t.Fleet == nil || t.release != nil {
		return false, nil
	}
	t.arrive(ctx, nil)
	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if t.job.Replaced != nil {
		stop := context.AfterFunc(t.job.Replaced, func() { cancel(errReplaced) })
		defer stop()
	}
	if t.job.Granted != nil {
		stop := context.AfterFunc(t.job.Granted, func() { cancel(errGranted) })
		defer stop()
	}
	release, err := t.Fleet.Permit(wait, t.name, r.Rolling)
	switch {
	case t.granted() && ctx.Err() == nil:
		if err == nil {
			release(nil)
		}
	case err != nil:
		return false, fail(stagePermit, 5*time.Second, fmt.Errorf("wait for a permit: %w", err))
	default:
		t.release = release
	}
	t.reloads.join(t.job.key)
	t.arrived = false
	return true, nil
}

// The causes that end a wait for a permit.
var (
	errReplaced = errors.New("the settings of the bundle were replaced")
	errGranted  = errors.New("the host has a turn of a rollout")
)

// granted reports whether the host has a turn of a rollout for the bundle.
func (t *applying) granted() bool { return t.job.Granted != nil && t.job.Granted.Err() != nil }

// newer takes the newest view; it reports whether that concerns the bundle.
func (t *applying) newer() bool {
	if t.job.Newest == nil {
		return false
	}
	v := t.job.Newest()
	if !v.Has(t.job.Bundle.Sources...) || !t.job.Bundle.Concerns(t.job.View, v) {
		return false
	}
	t.job.View = v
	return true
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
	return t.afterSwap(ctx, t.restore())
}

// afterSwap makes the program read the files in place, and ends the change:
// reload, and for a rolling one the pause and the post_check. When one fails
// and restore is not nil, the old files come back and the program reads them.
func (t *applying) afterSwap(ctx context.Context, restore func() error) error {
	err := t.reload(ctx, restore)
	restored, isRestored := errors.AsType[*restoredError](err)
	if err == nil {
		err = t.settled(ctx)
		if err != nil && ctx.Err() == nil && restore != nil {
			restored = t.back(ctx, err, restore)
			err, isRestored = restored, true
		}
	}
	if ctx.Err() != nil && err != nil {
		// We are stopping: the next process reads the journal and the owed list.
		t.tx.Keep()
		return err
	}
	if err != nil {
		t.failed = err
	}
	if isRestored {
		if restored.stuck {
			t.Conds.Open("restore-failed", t.name, err.Error())
		} else {
			t.Conds.Close("restore-failed", t.name)
		}
		retry := time.Duration(0)
		if !restored.clean {
			retry = reloadRetry
		}
		return errors.Join(&failure{stage: stageReload, err: restored, retry: retry, reload: !restored.clean && !restored.stuck}, t.tx.Commit())
	}
	t.remember()
	return errors.Join(err, t.tx.Commit())
}

// reloadRetry is when a failed reload is tried again at first.
const reloadRetry = 10 * time.Second

// settled is what follows the reload of a rolling one: the pause, then the
// post_check.
func (t *applying) settled(ctx context.Context) error {
	r := t.job.Bundle.Config.Reload
	if t.release == nil || r.Rolling == nil {
		return nil
	}
	if !pace.Sleep(ctx, r.Rolling.Pause) {
		return context.Cause(ctx)
	}
	if err := t.postCheck(ctx); err != nil {
		return fail(stageReload, 0, err)
	}
	return nil
}

// postCheck runs the post_check of a rolling reload, if there is one.
func (t *applying) postCheck(ctx context.Context) error {
	r := t.job.Bundle.Config.Reload
	if r == nil || r.Rolling == nil || !r.Rolling.PostCheck.Set() {
		return nil
	}
	args, err := r.Rolling.PostCheck.Args(t.job.Bundle.vars(nil))
	if err == nil {
		c := t.trigger(command.EventPostCheck).Command(r.Rolling.PostCheck, args)
		c.Timeout = DefaultReloadTimeout
		_, err = t.Options.Run(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("post_check: %w", err)
	}
	return nil
}

// back puts the old files back after a failed post_check, and has the program
// read them.
func (t *applying) back(ctx context.Context, failed error, restore func() error) *restoredError {
	if err := t.owed.add(t.name); err != nil {
		return &restoredError{err: errors.Join(failed, err), stuck: true}
	}
	if err := restore(); err != nil {
		return &restoredError{err: fmt.Errorf("%w; restore files of %s: %w", failed, t.name, err), stuck: true}
	}
	t.reloads.join(t.job.key)
	t.arrived = false
	if err := t.reload(ctx, nil); err != nil {
		return &restoredError{err: fmt.Errorf("%w; reload of the restored files: %w", failed, err)}
	}
	return &restoredError{err: failed, clean: true}
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
		if errors.Is(err, files.ErrNotRestored) {
			t.Conds.Open("restore-failed", t.name, err.Error())
		}
		return errors.Join(fail(stageSwap, time.Second, err), t.tx.Discard(), t.unowe())
	}
	if err := t.check(ctx, true); err != nil {
		if ctx.Err() != nil {
			// We are stopping in the middle of the check: the next process
			// finishes it.
			t.tx.Keep()
			return err
		}
		back := t.tx.Restore()
		if back != nil {
			t.Conds.Open("restore-failed", t.name, back.Error())
			t.tx.Keep()
			return errors.Join(err, back)
		}
		t.Conds.Close("restore-failed", t.name)
		// No program has read the new files, so no reload is owed for them.
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
	lists, err := t.lists(cfg.Command)
	if err != nil {
		return fail(stageReload, reloadRetry, err)
	}
	content := t.content()
	if err := t.lives.err(t.name, content); err != nil {
		return fail(stageReload, 0, err)
	}
	req := &reloadRequest{
		bundle: t.name, content: content, cfg: cfg, lists: lists, trigger: t.trigger(command.EventReload), splay: t.job.Bundle.Config.Splay,
		zxids: zxids(t.job.View, t.job.Bundle.Sources), restore: restore, done: make(chan error, 1),
	}
	if cfg.Leader != "" {
		req.digest, req.repair = t.filesDigest(), t.repairs()
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
	return fail(stageReload, reloadRetry, err)
}

// trigger is what the bundle's commands learn of their cause.
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

// repairs reports whether the apply put back what was rendered before.
func (t *applying) repairs() bool {
	return t.changed > 0 && !slices.ContainsFunc(t.outputs, func(o *output) bool { return o.new })
}

// filesDigest identifies the contents of the bundle's files, wherever a host keeps
// the files.
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
