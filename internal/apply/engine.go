package apply

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
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
	// Previews is [PreviewOf]; tests have others.
	Previews func(*CheckConfig) (string, error)
	FS       *files.FS // for tests
	// Booted says that the machine has just started: what reads the files of a bundle
	// that has none does not run yet.
	Booted bool
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
	// RunLeading runs a command under the lease of the election's term. In another term it
	// returns [command.ErrNotLeading], as BeginReload does.
	RunLeading(ctx context.Context, election string, term int64, c proc.Command) (proc.Result, error)
	// BeginReload reports whether the fleet has done a leader-only reload already.
	// If not, the caller passes the result to finish.
	BeginReload(ctx context.Context, r command.LeaderReload) (done bool, finish func(error), err error)
	// Permit waits for a permit of a rolling reload. The caller returns it
	// by release, once. A failure that it passes halts the bundle on all hosts;
	// an error then says that the halt may not stand.
	// halted, when not nil, is called when the wait is for the end of a halt.
	Permit(ctx context.Context, bundle string, cfg *RollingConfig, halted func()) (release func(failed *Halt) error, err error)
}

// Engine applies bundles. What a bundle must remember is in the [Bundle]. It
// is safe for concurrent use, for one job of a bundle at a time.
type Engine struct {
	Options

	reloads  *reloads
	pending  pendingReloads
	attempts attempts
	halts    files.Map[Halt] // failures for which the other hosts are not halted yet
	lock     swapLock

	mu         sync.Mutex                 // mu guards what follows.
	recovered  map[string]files.Recovered // changes of a previous process, by bundle, for its first apply
	recovering map[string]chan struct{}   // by bundle, closed when its recovery has ended
	closed     bool
}

// New makes an engine. It reads which reloads of a previous process are pending.
func New(o Options) *Engine {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Conds = cmp.Or(o.Conds, &condition.Set{})
	o.Events = cmp.Or(o.Events, event.NewRing())
	o.FS = cmp.Or(o.FS, &files.FS{})
	o.Observer = cmp.Or[Observer](o.Observer, nobody{})
	if o.FS.Watch == nil {
		o.FS.Watch = func(op, path string) func() { return watch(o.Conds, op, path) }
	}
	if o.Previews == nil {
		o.Previews = PreviewOf
	}
	e := &Engine{Options: o, recovered: map[string]files.Recovered{}, recovering: map[string]chan struct{}{}}
	e.pending.Map = openMap[pendingReload](&o, "pending_reloads.json", "which reloads are pending: a program may use old files until its next reload")
	e.attempts.Map = openMap[attempt](&o, "attempts.json", "which reloads have ended their agent")
	e.attempts.countDeaths()
	e.halts = openMap[Halt](&o, "halts.json", "which rolling reloads have failed: the other hosts are not halted")
	e.reloads = &reloads{engine: e, queues: map[string]*reloadQueue{}}
	return e
}

// openMap reads what previous processes noted. What cannot be read is lost, with a warning.
func openMap[V any](o *Options, name, what string) files.Map[V] {
	m, err := files.OpenMap[V](o.StateDir, name, o.FS)
	if err != nil {
		o.Log.Warn("cannot read a state file", "of", what, "err", err)
	}
	return m
}

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
	ModeReload             // reload what is in place, because that is pending
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
	// Back says that the host goes back to View: a change that a previous process
	// has left unfinished is taken back, and the program does not read it again.
	Back bool

	pendingReload bool   // a reload is pending whether or not files change
	key           string // reload queue that was joined; empty: none
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
	// Since is when the files in place were written last; zero: not known.
	Since time.Time
	// Wrote are the files that are in place now and were not before; all that the
	// bundle renders, after its first apply.
	Wrote []Output
}

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
	job.pendingReload = e.pending.has(job.Bundle.Config.Name)
	t := &applying{Engine: e, job: job, name: job.Bundle.Config.Name}
	defer t.submit(ctx, nil)
	if job.Mode == ModeReload {
		r.Err = plain(t.reload(ctx, nil))
	} else {
		r.Err = plain(t.reloadPending(ctx, t.run(ctx)))
	}
	t.endAttempt()
	if r.View = t.job.View; r.Err != nil {
		// What was rendered may not be what is in place: the next apply
		// renders and compares everything.
		job.Bundle.outputs, job.Bundle.look = nil, true
	}
	r.Changed, r.Took = t.changed, time.Since(began)
	r.Files, r.Since = job.Bundle.files()
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

// PendingSince is since when the reload of a bundle is pending; zero: it is not.
func (e *Engine) PendingSince(bundle string) time.Time {
	r, _ := e.pending.Get(bundle)
	return r.Since
}

// PendingText says what is in place while the reload of a bundle is pending; "" when it
// is not.
func (e *Engine) PendingText(bundle string) string {
	r, ok := e.pending.Get(bundle)
	switch {
	case !ok:
		return ""
	case r.Restored:
		return "the new files were taken back, and the reload after that has not succeeded yet"
	}
	return "the new files are in place, and their reload has not succeeded yet"
}

// LastReload is the latest run of a bundle's reload; nil when there was none.
func (e *Engine) LastReload(bundle string) *ReloadStatus { return e.reloads.newest(bundle) }

// The causes that end a wait for a permit.
var (
	errReplaced = errors.New("the settings of the bundle were replaced")
	errGranted  = errors.New("the host has a turn of a rollout")
	errUnread   = errors.New("the program has not read the old files that came back")
)

// reloadRetry is when a failed reload is tried again at first.
const reloadRetry = 10 * time.Second

func (e *Engine) journalDir() string {
	if e.StateDir == "" {
		return ""
	}
	return filepath.Join(e.StateDir, "journal")
}

// Kept reports whether the files stay as they are because the data for new ones
// are not there.
func (r *Result) Kept() bool { return r.Empty() != nil || r.MissingKey() != nil }

// Empty is the error of a group that keeps the files as they are.
func (r *Result) Empty() error { return r.of(template.ErrEmptyGroup) }

// MissingKey is the error of a key that keeps the files as they are.
func (r *Result) MissingKey() error { return r.of(template.ErrNoKey) }

func (r *Result) of(class error) error {
	if errors.Is(r.Err, class) {
		return r.Err
	}
	return nil
}

// Failure is the error of an apply that went wrong.
func (r *Result) Failure() error {
	if r.Kept() {
		return nil
	}
	return r.Err
}

// stagedName is the name of a file before it takes the place of its destination.
var stagedName = regexp.MustCompile(`\.([^/\s:"]+)\.zkagent-new-[A-Z2-7]+`)

// plainError is an error whose text names destinations: a staged file has another
// name at each try, and the reader does not know it.
type plainError struct {
	error
	text string
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() error { return e.error }

// plain makes the text of an error name destinations.
func plain(err error) error {
	if err == nil || !stagedName.MatchString(err.Error()) {
		return err
	}
	return &plainError{err, stagedName.ReplaceAllString(err.Error(), "$1")}
}

// Settle decides when a bundle whose inputs changed is applied. With no Min it
// is at once (leading edge): what arrives during an apply is folded into the
// next one. With Min it is when nothing has changed for Min, but never later
// than Max after the first change.
type Settle struct {
	Min, Max time.Duration

	first, last time.Time // zero: nothing is pending
}

// Note records a change at now.
func (s *Settle) Note(now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	s.last = now
}

// Pending reports whether a change waits.
func (s *Settle) Pending() bool { return !s.first.IsZero() }

// Due is when the pending change is to be applied.
func (s *Settle) Due() time.Time {
	if s.Min <= 0 {
		return s.first
	}
	due := s.last.Add(s.Min)
	if s.Max > 0 {
		if latest := s.first.Add(max(s.Max, s.Min)); due.After(latest) {
			return latest
		}
	}
	return due
}

// Take forgets what was pending: it is being applied.
func (s *Settle) Take() { s.first, s.last = time.Time{}, time.Time{} }
