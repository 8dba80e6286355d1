package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	terms       terms
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
		Options: o, terms: terms{in: map[string]*term{}}, seen: zxids{newest: map[string]int64{}},
		history: history{stateDir: o.StateDir, log: o.Log, hooks: map[string]*files.Store[hookRuns]{}},
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
			x := e.terms.get(h.Leader)
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
	e.history.hook(name).Read(func(k hookRuns) { runs = slices.Clone(k.Runs) })
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

// plain runs a command that needs no lease.
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
