package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// Options is what the hooks get from the agent.
type Options struct {
	Agent      string // id of the agent
	StateDir   string // empty: ledgers and history end with the process
	Log        *slog.Logger
	Conditions *condition.Set
	// Run runs a command; nil: proc.Run, under a guard where it needs a lease.
	// Tests in virtual time replace it.
	Run command.Run
	// State returns the latest state.
	State  func() State
	Events *event.Ring
	Count  func(hook, result string) // counts a run by its result
	// Elected is called when a term has begun, before its hooks.
	Elected func(ctx context.Context)
}

// State is what the triggers look at.
type State struct {
	View     view.View
	Complete bool // every declared source has reported
	// InPlace reports whether the files that show this state of the source are
	// in place.
	InPlace func(view.Source) bool
	Next    <-chan struct{} // closed when there is a newer state
}

// ErrUnknownName says that the settings have no such block.
var ErrUnknownName = errors.New("no such name in the settings")

// Engine runs the hooks of one agent. It is safe for concurrent use.
type Engine struct {
	Options

	terms       sync.Map // the terms that this agent is in, by election
	seen        zxids
	history     history
	set         atomic.Pointer[set]
	deposing    sync.WaitGroup // on_deposed hooks that run
	guardsGone  atomic.Bool
	handingOver atomic.Bool
}

// set is the hooks of the settings in use, and how to follow reloads.
type set struct {
	hooks     []Config
	elections map[string]string // path of each election
	next      chan struct{}     // closed when there is another set
}

// New returns an engine without hooks.
func New(o Options) *Engine {
	e := &Engine{
		Options: o, seen: zxids{newest: map[string]int64{}},
		history: history{stateDir: o.StateDir, log: o.Log, hooks: map[string]*files.Store[[]Run]{}},
	}
	e.set.Store(&set{next: make(chan struct{})})
	return e
}

// Set replaces the hooks. elections maps the name of each election to its path.
// A hook whose block did not change is not disturbed.
func (e *Engine) Set(hooks []Config, elections map[string]string) {
	close(e.set.Swap(&set{hooks: hooks, elections: elections, next: make(chan struct{})}).next)
}

// Run runs the hooks of every host until ctx ends; no command of theirs is left
// when it returns.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { e.follow(ctx) })
	p := &place{engine: e, scope: scope{run: e.plain, newLedger: func(hook string) ledger {
		if e.StateDir == "" {
			return &localLedger{}
		}
		return &localLedger{path: files.StateFile(e.StateDir, "ledger", hook)}
	}}}
	p.run(ctx)
}

// follow notes every state, also while this agent leads nothing.
func (e *Engine) follow(ctx context.Context) {
	for {
		s := e.State()
		e.seen.note(s.View)
		select {
		case <-ctx.Done():
			return
		case <-s.Next:
		}
	}
}

// zxids are the largest zxids that this process has seen. It is safe for
// concurrent use.
type zxids struct {
	mu     sync.Mutex // mu guards newest.
	newest map[string]int64
}

func (z *zxids) note(v view.View) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, s := range v.Sources() {
		name := s.String()
		z.newest[name] = max(z.newest[name], v.Get(s).Zxid())
	}
}

func (z *zxids) of(source string) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.newest[source]
}

// RunNow runs a hook because somebody asked for it. A leader-only hook runs only
// where its leader is.
func (e *Engine) RunNow(ctx context.Context, name string) error {
	for _, h := range e.set.Load().hooks {
		if h.Name != name {
			continue
		}
		s := scope{run: e.plain}
		if h.Leader != "" {
			x := e.leading(h.Leader)
			if x == nil {
				return fmt.Errorf("hook %s: this agent does not lead election %s", name, h.Leader)
			}
			s.term = x.election.ID
			s.run = func(ctx context.Context, c proc.Command) (proc.Result, error) { return e.runInTerm(ctx, x, c) }
		}
		p := &place{engine: e, election: h.Leader, scope: s}
		return p.runner(h).once(ctx, command.Trigger{Event: command.EventManual}, time.Time{}, 1)
	}
	return fmt.Errorf("hook %q: %w", name, ErrUnknownName)
}

// Runs returns the last runs of a hook, oldest first.
func (e *Engine) Runs(name string) []Run {
	var runs []Run
	e.history.hook(name).Read(func(kept []Run) { runs = slices.Clone(kept) })
	return runs
}

// NextSlot is the next slot of a hook's schedule; zero when there is none.
func (e *Engine) NextSlot(c Config) time.Time {
	s, err := e.schedule(c)
	if err != nil {
		return time.Time{}
	}
	return s.Next(time.Now())
}

// schedule parses the hook's schedule. Its hashed fields depend on the
// election's path and the hook's name, so that every candidate agrees; a leader-only one without a zone is in UTC.
func (e *Engine) schedule(c Config) (Schedule, error) {
	if c.Schedule == "" {
		return Schedule{}, nil
	}
	line, path := c.Schedule, e.Agent
	if c.Leader != "" {
		path = e.set.Load().elections[c.Leader]
		if !strings.Contains(line, "TZ=") {
			// Candidates may be set to different zones: with the host's own, a
			// slot would run once in each of them.
			line = "CRON_TZ=UTC " + line
		}
	}
	return ParseSchedule(line, path+"\x00"+c.Name)
}

func (e *Engine) plain(ctx context.Context, c proc.Command) (proc.Result, error) {
	if e.Options.Run != nil {
		return e.Options.Run(ctx, c)
	}
	return proc.Run(ctx, c)
}

// DefaultTimeout bounds a hook that names no timeout.
const DefaultTimeout = 30 * time.Second

// Values of Config.CatchUp and Overlap.
const (
	catchUpLatest = "latest"
	catchUpAll    = "all"
	catchUpSkip   = "skip"

	overlapAllow   = "allow"
	overlapReplace = "replace"
)

// Config is a hook block.
type Config struct {
	Name       string
	Leader     string        // election; empty: every host
	OnChange   []view.Source // sources whose changes run it
	Schedule   string        // cron line
	OnElected  bool
	OnDeposed  bool
	Command    command.Command
	Timeout    time.Duration
	Retries    int
	Jitter     time.Duration
	Overlap    string // forbid, allow or replace
	CatchUp    string // latest, all or skip
	Idempotent bool
}

// place runs the hooks of one place, this host or one term of an election, and
// follows reloads of the settings.
type place struct {
	engine   *Engine
	election string // empty: the hooks of every host
	scope    scope
}

type runningHook struct {
	cfg  Config
	stop func() // ends it, and waits for its end
}

// run runs the hooks until ctx ends; none is left when it returns.
func (p *place) run(ctx context.Context) {
	running := map[string]runningHook{}
	defer func() {
		var wg sync.WaitGroup
		for _, r := range running {
			wg.Go(r.stop)
		}
		wg.Wait()
	}()
	for ctx.Err() == nil {
		now := p.engine.set.Load()
		want := map[string]Config{}
		for _, c := range now.hooks {
			if c.Leader == p.election && (len(c.OnChange) > 0 || c.Schedule != "" || c.OnElected) { // on_deposed comes after a term
				want[c.Name] = c
			}
		}
		for name, r := range running {
			if c, ok := want[name]; ok && same(c, r.cfg) {
				delete(want, name)
				continue
			}
			r.stop()
			delete(running, name)
			if !slices.ContainsFunc(p.engine.set.Load().hooks, func(c Config) bool { return c.Name == name }) {
				p.engine.Conditions.Close(condition.HookFailed, name)
				p.engine.Conditions.Close(condition.HookUnknown, name)
			}
		}
		for name, c := range want {
			ctx, cancel := context.WithCancel(ctx)
			runner := p.runner(c)
			var wg sync.WaitGroup
			wg.Go(func() { runner.run(ctx) })
			running[name] = runningHook{c, func() { cancel(); wg.Wait() }}
		}
		select {
		case <-ctx.Done():
		case <-now.next:
		}
	}
}

// same compares two blocks; commands are compared by their text.
func same(a, b Config) bool {
	a.Command.Args, b.Command.Args = nil, nil
	return reflect.DeepEqual(a, b)
}

func (p *place) runner(c Config) *runner {
	r := &runner{engine: p.engine, cfg: c, scope: p.scope, log: p.engine.Log.With("component", "hook")}
	var err error
	r.schedule, err = p.engine.schedule(c)
	p.engine.Conditions.Set(condition.HookSchedule, c.Name, err)
	return r
}

// Run is one run of a hook, or of a reload, as its history keeps it.
type Run struct {
	Event  string       `json:"event"`
	Began  time.Time    `json:"began"`
	Took   view.Seconds `json:"took_seconds"`
	State  string       `json:"state"` // started, done or failed
	Code   int          `json:"code"`
	Signal string       `json:"signal,omitempty"`
	Term   int64        `json:"term,omitempty"`
	Slot   time.Time    `json:"slot,omitzero"`
	Try    int          `json:"try,omitempty"`
	Error  string       `json:"error,omitempty"`
	Output string       `json:"output,omitempty"` // its end
}

// How much of the past is kept.
const (
	runsKept   = 20
	outputKept = 8 << 10
)

// history keeps the last runs of each hook, in the state directory when there
// is one. It is safe for concurrent use.
type history struct {
	stateDir string // empty: memory only
	log      *slog.Logger

	mu    sync.Mutex                     // mu guards hooks.
	hooks map[string]*files.Store[[]Run] // oldest run first
}

// hook is where the runs of one hook are kept. Its first use reads what a previous
// process kept.
func (h *history) hook(name string) *files.Store[[]Run] {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.hooks[name]
	if kept == nil {
		var err error
		if kept, err = files.OpenStore[[]Run](h.stateDir, files.StateFile("", "hooks", name), nil); err != nil {
			h.log.Warn("cannot read the last runs of a hook", "hook", name, "err", err)
		}
		h.hooks[name] = kept
	}
	return kept
}

// add appends a run; a state directory that cannot be written costs the
// history over a restart, nothing else.
func (h *history) add(name string, r Run) {
	if len(r.Output) > outputKept {
		r.Output = r.Output[len(r.Output)-outputKept:]
	}
	_ = h.hook(name).Change(func(runs *[]Run) files.Write {
		*runs = slices.Concat((*runs)[max(len(*runs)+1-runsKept, 0):], []Run{r})
		return files.WriteSave
	})
}
