package hook

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// hookBed runs one hook in virtual time over a ledger in memory.
type hookBed struct {
	t      *testing.T
	ledger *memLedger
	conds  *condition.Set
	runner *runner

	mu    sync.Mutex // mu guards what follows.
	view  view.View
	stale bool // the files do not show the view yet
	next  chan struct{}
	runs  []string // event and slot of each run
	run   func(ctx context.Context) error
}

// memLedger is a ledger that outlives runners, as ZooKeeper's does.
type memLedger struct {
	mu     sync.Mutex // mu guards what follows.
	local  localLedger
	refuse error
}

func (l *memLedger) load(ctx context.Context) (record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.local.load(ctx)
}

func (l *memLedger) store(ctx context.Context, r record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		return l.refuse
	}
	return l.local.store(ctx, r)
}

// record is what the ledger holds.
func (l *memLedger) record() record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.local.mem.clone()
}

// refuseWith makes writes fail from now on, or not any more.
func (l *memLedger) refuseWith(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = err
}

func (*memLedger) ordered() bool { return true }

func newHookBed(t *testing.T, c Config) *hookBed {
	t.Helper()
	b := &hookBed{t: t, ledger: &memLedger{}, next: make(chan struct{})}
	c.Name = "h"
	c.Command = argv("hook")
	b.runner = b.make(c, 7)
	return b
}

// make makes a runner as the next leader has one.
func (b *hookBed) make(c Config, term int64) *runner {
	b.t.Helper()
	e := newEngine(b.state)
	b.conds = e.Conditions
	p := &place{engine: e, scope: scope{
		term: term, newLedger: func(string) ledger { return b.ledger },
		run: func(ctx context.Context, c proc.Command) (proc.Result, error) { return b.exec(ctx, c) },
	}}
	return p.runner(c)
}

// newEngine is an engine without observers.
func newEngine(state func() State) *Engine {
	return New(Options{
		Agent: "a1", Log: slog.New(slog.DiscardHandler), Conditions: &condition.Set{}, State: state,
		Events: event.NewRing(), Count: func(string, string) {}, Elected: func(context.Context) {},
	})
}

// argv is a command with fixed arguments.
func argv(args ...string) command.Command {
	return command.Command{Text: strings.Join(args, " "), Args: func(command.Vars) ([]string, error) { return args, nil }}
}

func (b *hookBed) state() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	inPlace := !b.stale
	return State{View: b.view, Complete: true, InPlace: func(view.Source) bool { return inPlace }, Next: b.next}
}

func (b *hookBed) exec(ctx context.Context, c proc.Command) (proc.Result, error) {
	b.mu.Lock()
	b.runs = append(b.runs, strings.TrimPrefix(c.Env[0], "ZKAGENT_EVENT="))
	run := b.run
	b.mu.Unlock()
	if run == nil {
		return proc.Result{}, nil
	}
	err := run(ctx)
	return proc.Result{}, err
}

func (b *hookBed) update(u view.Update) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view = b.view.With(u)
	close(b.next)
	b.next = make(chan struct{})
}

// files says whether the files show the view.
func (b *hookBed) files(inPlace bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = !inPlace
	close(b.next)
	b.next = make(chan struct{})
}

func (b *hookBed) count(want int, what string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.runs) != want {
		b.t.Errorf("%s: got %d runs (%v), want %d", what, len(b.runs), b.runs, want)
	}
}

func tree(zxid int64) *view.Tree {
	t := view.TreeOf("web", "/web", map[string]string{"k": strconv.FormatInt(zxid, 10)})
	t.Last, t.Generation = zxid, zxid
	return t
}

var onWeb = []view.Source{{Kind: view.KindConfig, Name: "web"}}

// during runs the runner while fn runs.
func (b *hookBed) during(fn func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancelCause(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.runner.run(ctx)
	}()
	synctest.Wait()
	fn()
	cancel(errors.New("term ended"))
	<-done
}

func TestHook_ChangeRunsOnceOverTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb})
		b.update(tree(10))
		b.during(func() {
			b.count(1, "first sight")
			b.update(tree(10))
			synctest.Wait()
			b.count(1, "same change")
			b.update(tree(11))
			synctest.Wait()
			b.count(2, "new change")
		})
		b.update(tree(12)) // while nobody leads.
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() { b.count(3, "change that nobody ran") })
		b.runner = b.make(b.runner.cfg, 9)
		b.during(func() { b.count(3, "finished by the former leader") })
	})
}

// A version that is replaced during the random delay of its run is not run: the run is of
// the version that is in place then.
func TestHook_ReplacedDuringTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb, Jitter: time.Hour})
		b.update(tree(10))
		b.during(func() {
			time.Sleep(time.Hour)
			b.count(1, "first sight")
			b.update(tree(11))
			time.Sleep(time.Millisecond)
			b.update(tree(12))
			time.Sleep(2 * time.Hour)
			b.count(2, "replaced")
		})
		if e := b.ledger.record().Changes["config.web"]; e.Zxid != 12 || e.State != stateDone {
			t.Errorf("the ledger has %+v", e)
		}
	})
}

func TestHook_StartedAndNotFinishedIsUnknown(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, Config{OnChange: onWeb, Idempotent: idempotent, Timeout: time.Hour})
			b.run = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
			b.update(tree(10))
			b.during(func() { b.count(1, "started") })
			if e := b.ledger.record().Changes["config.web"]; e.State != stateStarted {
				t.Fatalf("got state %q", e.State)
			}
			b.run = nil
			b.runner = b.make(b.runner.cfg, 8)
			b.during(func() {
				want := 1
				if idempotent {
					want = 2
				}
				b.count(want, "the next leader")
				if got := b.conds.Has(condition.HookUnknown, "h"); got == idempotent {
					t.Errorf("idempotent %v: reported as unknown: %v", idempotent, got)
				}
				b.update(tree(11))
				synctest.Wait()
				b.count(want+1, "a newer change")
			})
		})
	}
}

// The end of a run that an older state replaces is unknown, too.
func TestHook_StartedForANewerStateIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb, Timeout: time.Hour})
		b.run = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		b.update(tree(20))
		b.during(func() { b.count(1, "started") })
		b.run = nil
		b.view = view.View{}.With(tree(10))
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() {
			time.Sleep(2 * behindLimit)
			b.count(2, "the older state is the one in use")
		})
		if len(b.runner.unknown) != 1 {
			t.Errorf("reported as unknown: %v", b.runner.unknown)
		}
	})
}

func TestHook_RefusedLedgerRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb, OnElected: true})
		b.ledger.refuseWith(errors.New("no connection"))
		b.update(tree(10))
		b.during(func() {
			time.Sleep(time.Minute)
			b.count(0, "ledger cannot be written")
			b.ledger.refuseWith(nil)
			time.Sleep(time.Minute)
			b.count(2, "ledger can be written")
		})
		b.ledger.refuseWith(errNotLeader)
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() { time.Sleep(time.Minute); b.count(2, "not the leader") })
	})
}

func TestHook_ElectedOncePerTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnElected: true})
		b.during(func() { b.count(1, "first term") })
		b.runner = b.make(b.runner.cfg, 7)
		b.during(func() { b.count(1, "the same term, resumed") })
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() { b.count(2, "next term") })
	})
}

func TestHook_RetriesAndFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb, Retries: 2})
		b.run = func(context.Context) error { return errors.New("exit status 1") }
		b.update(tree(10))
		b.during(func() {
			time.Sleep(5 * time.Minute)
			b.count(3, "one run and two retries")
			if e := b.ledger.record().Changes["config.web"]; e.State != stateFailed {
				t.Errorf("got state %q", e.State)
			}
			if !b.conds.Has(condition.HookFailed, "h") {
				t.Error("not reported")
			}
		})
	})
}

// The clock of a bubble begins at midnight UTC.
func TestHook_ScheduleCatchUp(t *testing.T) {
	for _, c := range []struct {
		mode string
		want int
	}{{"", 3}, {catchUpLatest, 3}, {catchUpAll, 5}, {catchUpSkip, 2}} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *", CatchUp: c.mode})
			b.during(func() {
				b.count(0, "no slot yet")
				time.Sleep(90 * time.Minute)
				b.count(1, "one slot")
			})
			time.Sleep(3 * time.Hour) // three slots while nobody leads.
			b.runner = b.make(b.runner.cfg, 8)
			b.during(func() {
				time.Sleep(time.Hour)
				b.count(c.want, "catch_up "+c.mode)
			})
		})
	}
}

func TestHook_ScheduleOverlap(t *testing.T) {
	for _, c := range []struct {
		mode string
		most int
	}{{"forbid", 1}, {overlapAllow, 3}, {overlapReplace, 1}} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *", Overlap: c.mode, Timeout: 24 * time.Hour})
			running, most := 0, 0
			b.run = func(ctx context.Context) error {
				b.mu.Lock()
				running++
				most = max(most, running)
				b.mu.Unlock()
				defer func() { b.mu.Lock(); running--; b.mu.Unlock() }()
				if !pace.Sleep(ctx, 150*time.Minute) {
					return context.Cause(ctx)
				}
				return nil
			}
			b.during(func() { time.Sleep(10 * time.Hour) })
			if most != c.most {
				t.Errorf("%s: got %d at the same time, want %d", c.mode, most, c.most)
			}
			if running != 0 {
				t.Errorf("%s: %d still run", c.mode, running)
			}
		})
	}
}

func TestHook_AllowedOverlapRecordsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{Schedule: "CRON_TZ=UTC 0 * * * *", Overlap: overlapAllow})
		b.during(func() {
			time.Sleep(90 * time.Minute)
			if s := b.ledger.record().Slot; s == nil || s.State != stateDone || s.Run == "" {
				t.Errorf("got %+v", s)
			}
		})
	})
}
