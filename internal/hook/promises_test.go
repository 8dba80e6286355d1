package hook

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

var onAPI = []view.Source{{Kind: view.KindGroup, Name: "api"}}

func group(zxid int64, members ...view.Member) *view.Group {
	return &view.Group{Name: "api", Path: "/api", Members: members, Last: zxid}
}

func member(id string, czxid int64) view.Member {
	return view.Member{ID: id, Znode: id + "-" + time.Unix(czxid, 0).UTC().Format("0405"), Host: id, Port: 80, Weight: 1, Status: view.StatusUp, Czxid: czxid}
}

// The end of a hold changes what is accepted and no znode.
func TestHook_EndOfAHoldRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onAPI})
		gone := member("b", 2)
		b.update(group(9, member("a", 1), gone))
		b.during(func() {
			b.count(1, "first sight")
			gone.Held = true
			b.update(group(10, member("a", 1), gone))
			synctest.Wait()
			b.count(1, "held: the same members")
			b.update(group(10, member("a", 1)))
			synctest.Wait()
			b.count(2, "the hold ended")
		})
	})
}

// A member that registers again brings nothing new.
func TestHook_SameContentIsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onAPI})
		b.update(group(9, member("a", 1)))
		b.during(func() {
			b.update(group(12, member("a", 12)))
			synctest.Wait()
			b.count(1, "registered again")
			b.update(group(14, member("a", 12), member("b", 14)))
			synctest.Wait()
			b.count(2, "another member")
		})
		b.update(group(20, member("a", 19), member("b", 20)))
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() { b.count(2, "the next leader sees the same members") })
	})
}

// A version that a host gave up is followed by the one before it.
func TestHook_WayBackRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb})
		b.update(tree(10))
		b.during(func() {
			b.update(tree(11))
			synctest.Wait()
			b.update(tree(10))
			synctest.Wait()
			b.count(3, "there and back")
		})
	})
}

// A leader whose view lags waits for what the ledger is about. A view that stays
// older is no lag.
func TestHook_ViewThatLagsWaits(t *testing.T) {
	for _, catchesUp := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, Config{OnChange: onWeb})
			b.update(tree(20))
			b.during(func() { b.count(1, "first sight") })
			b.view = view.View{}.With(tree(10))
			b.runner = b.make(b.runner.cfg, 8)
			b.during(func() {
				time.Sleep(behindLimit / 2)
				b.count(1, "behind")
				if catchesUp {
					b.update(tree(20))
				}
				time.Sleep(behindLimit)
				if catchesUp {
					b.count(1, "caught up")
				} else {
					b.count(2, "the older state is the one in use")
				}
			})
		})
	}
}

// A ledger of a former version knows the zxid only.
func TestHook_LedgerWithoutADigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb})
		b.ledger.local.mem = record{Changes: map[string]entry{"config.web": {Zxid: 10, State: stateDone, Term: 1}}}
		b.update(tree(10))
		b.during(func() {
			b.count(0, "done by the former version")
			b.update(tree(11))
			synctest.Wait()
			b.count(1, "a newer state")
		})
	})
}

func TestHook_NotBeforeItsFilesAreInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{OnChange: onWeb})
		b.files(false)
		b.update(tree(10))
		b.during(func() {
			time.Sleep(time.Hour)
			b.count(0, "the files are not in place")
			b.files(true)
			synctest.Wait()
			b.count(1, "the files are in place")
		})
	})
}

// The end of the lease cuts a run off. The run then counts as unknown, not as done or
// failed, also in a term that goes on.
func TestHook_LeaseThatEndsLeavesTheRunUnknown(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		of   func(record) *entry
		wait time.Duration
	}{
		{"change", Config{OnChange: onWeb}, func(r record) *entry { e := r.Changes["config.web"]; return &e }, time.Minute},
		{"elected", Config{OnElected: true}, func(r record) *entry { return r.Elected }, time.Minute},
		{"slot", Config{Schedule: "0 * * * *"}, func(r record) *entry { return r.Slot }, 90 * time.Minute},
		{"overlapping slot", Config{Schedule: "0 * * * *", Overlap: overlapAllow}, func(r record) *entry { return r.Slot }, 90 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newHookBed(t, c.cfg)
			b.run = func(context.Context) error { return proc.ErrLease }
			b.update(tree(10))
			b.during(func() {
				time.Sleep(c.wait)
				b.count(1, c.name)
				if e := c.of(b.ledger.record()); e == nil || e.State != stateStarted {
					t.Errorf("%s: the ledger has %+v", c.name, e)
				}
				if !b.conds.Has(condition.HookUnknown, "h") {
					t.Errorf("%s: not reported", c.name)
				}
			})
		})
	}
}

// With catch_up = "skip" a slot from before the start is missed, however short
// ago it was.
func TestHook_SkipsSlotsFromBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHookBed(t, Config{Schedule: "0 * * * *", CatchUp: catchUpSkip})
		b.during(func() { time.Sleep(30 * time.Minute) })
		time.Sleep(30*time.Minute + 5*time.Second) // the slot comes due while nobody leads
		b.runner = b.make(b.runner.cfg, 8)
		b.during(func() {
			time.Sleep(time.Minute)
			b.count(0, "five seconds after the slot")
			time.Sleep(time.Hour)
			b.count(1, "the next slot")
		})
	})
}

// Candidates in different time zones agree on the slots of a leader-only hook.
func TestHook_LeaderOnlyScheduleIsInUTC(t *testing.T) {
	here := time.Local
	defer func() { time.Local = here }()
	time.Local = time.FixedZone("west", -5*3600)
	e := newEngine(nil)
	e.Set(nil, map[string]string{"e": "/e"})
	for _, c := range []struct {
		cfg  Config
		want int
	}{
		{Config{Schedule: "0 3 * * *", Leader: "e"}, 3},
		{Config{Schedule: "CRON_TZ=Asia/Tokyo 0 3 * * *", Leader: "e"}, 18},
		{Config{Schedule: "0 3 * * *"}, 8},
	} {
		if got := e.NextSlot(c.cfg).UTC().Hour(); got != c.want {
			t.Errorf("%+v: got hour %d UTC, want %d", c.cfg, got, c.want)
		}
	}
}

// leading is an agent in a term, with a real ledger.
func leading(t *testing.T, w *memzk.Server, host, stateDir string, fn func(e *Engine)) {
	t.Helper()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{host + ":2181"}, Timeout: simTimeout, Dial: w.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := make(chan struct{}, 1)
	e := New(Options{
		Agent: host, StateDir: stateDir, Log: slog.New(slog.DiscardHandler), Conditions: &condition.Set{}, Events: event.NewRing(),
		Count: func(string, string) {}, Elected: func(context.Context) { began <- struct{}{} },
		State: func() State { return State{Next: make(chan struct{})} },
	})
	e.Set(nil, map[string]string{"e": "/e"})
	c := election.New(election.Config{Name: "e", Path: "/e", ID: host, Lead: func(ctx context.Context, term election.Term) {
		e.Lead(ctx, "e", "/e", term)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx, s, nil)
	}()
	<-began
	fn(e)
	cancel()
	<-done
}

// The ledger of a reload knows the files: the same sources may give other files,
// and a former leader's work counts.
func TestReload_LedgerKnowsTheFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		reload := func(e *Engine, zxid int64, digest string, want bool, end error) {
			t.Helper()
			done, finish, err := e.BeginReload(t.Context(), command.LeaderReload{Election: "e", Term: e.Term("e"), Bundle: "b", Digest: digest, Zxids: map[string]int64{"config.web": zxid}})
			if err != nil || done == want {
				t.Errorf("zxid %d, files %s: done %v, %v; want to reload: %v", zxid, digest, done, err, want)
			}
			if finish != nil {
				finish(end)
			}
		}
		leading(t, w, "h1", "", func(e *Engine) {
			reload(e, 10, "x", true, nil)
			reload(e, 10, "x", false, nil)
			reload(e, 10, "edited", true, nil)
			reload(e, 11, "edited", false, nil) // the change of the source changed no file
			e.seen.note(view.View{}.With(tree(12)))
			reload(e, 12, "y", true, nil)
			reload(e, 11, "edited", true, nil) // a way back
			reload(e, 12, "y", true, errors.New("exit status 1"))
			reload(e, 12, "y", true, nil)
		})
		leading(t, w, "h2", "", func(e *Engine) {
			reload(e, 12, "y", false, nil)
			reload(e, 11, "edited", false, nil) // its view lags
			reload(e, 13, "z", true, proc.ErrLease)
			reload(e, 13, "z", true, nil)
		})
	})
}

// A process that begins to lead waits for what a former process of this agent has
// started: both would do the work of the leader.
func TestLead_WaitsForGuardsOfAFormerProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memzk.New(memzk.Options{TickTime: time.Second})
		defer w.Close()
		dir := t.TempDir()
		lock, err := os.Create(filepath.Join(dir, "guards.lock"))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		gone := time.AfterFunc(time.Minute, func() { lock.Close() })
		defer gone.Stop()
		leading(t, w, "h1", dir, func(*Engine) {
			if took := time.Since(began); took < time.Minute {
				t.Errorf("led after %s, while commands of the former process ran", took)
			}
		})
	})
}

// A command of a leader is gone before the server ends the session: its lease and its
// grace together are shorter than the session timeout.
func TestRunInTerm_GraceEndsBeforeTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		ran := false
		e := New(Options{Agent: "a1", Run: func(_ context.Context, c proc.Command) (proc.Result, error) {
			ran = true
			lease := time.Until(s.Lease())
			if lease <= 0 || c.Grace <= 0 || lease+c.Grace >= s.Timeout() {
				t.Errorf("a lease of %v and a grace of %v in a session of %v", lease, c.Grace, s.Timeout())
			}
			return proc.Result{}, nil
		}})
		if _, err := e.runInTerm(t.Context(), &term{ctx: t.Context(), election: election.Term{ID: 1, Session: s}}, proc.Command{}); err != nil || !ran {
			t.Error(ran, err)
		}
	})
}

// The term goes on in the next process after a handover, so no on_deposed hook runs.
func TestDeposed_NotAtAHandover(t *testing.T) {
	ran := 0
	e := New(Options{
		Agent: "a1", Log: slog.New(slog.DiscardHandler), Conditions: &condition.Set{}, Events: event.NewRing(), Count: func(string, string) {},
		Run: func(context.Context, proc.Command) (proc.Result, error) { ran++; return proc.Result{}, nil },
	})
	e.Set([]Config{{Name: "d", Leader: "night", OnDeposed: true, Command: command.Command{Text: "true", Args: func(command.Vars) ([]string, error) { return []string{"true"}, nil }}}}, nil)
	e.deposed(t.Context(), "night", 1)
	e.Wait()
	e.HandingOver()
	e.deposed(t.Context(), "night", 1)
	if e.Wait(); ran != 1 {
		t.Errorf("the hook ran %d times, want once: at the loss of the term", ran)
	}
}
