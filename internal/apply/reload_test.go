package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/proc"
)

// reloadBed is the reload queues in virtual time.
type reloadBed struct {
	*reloads

	mu  sync.Mutex // mu guards what follows.
	ran []string   // seconds since the start, and the command
	run func(args []string) error
}

func newReloadBed() *reloadBed {
	b := &reloadBed{}
	began := time.Now()
	e := New(Options{Run: func(_ context.Context, c proc.Command) (proc.Result, error) {
		b.mu.Lock()
		b.ran = append(b.ran, fmt.Sprintf("%.0f %s", time.Since(began).Seconds(), strings.Join(c.Args, " ")))
		run := b.run
		b.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		if run != nil {
			return proc.Result{}, run(c.Args)
		}
		return proc.Result{}, nil
	}})
	b.reloads = e.reloads
	return b
}

// ask asks for a reload as an apply does.
func (b *reloadBed) ask(ctx context.Context, cfg *ReloadConfig, restore func(error) error, args ...string) chan error {
	r := &reloadRequest{bundle: "b", cfg: cfg, lists: [][]string{args}, restore: restore, done: make(chan error, 1)}
	b.submit(ctx, "q", r)
	return r.done
}

func (b *reloadBed) got(t *testing.T, want string) {
	t.Helper()
	b.wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := strings.Join(b.ran, ", "); got != want {
		t.Errorf("got runs %q, want %q", got, want)
	}
}

func TestReloads_OneRunForAllThatNameIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cfg := newReloadBed(), &ReloadConfig{}
		for range 3 {
			b.join("q")
		}
		one := b.ask(t.Context(), cfg, nil, "reload")
		two := b.ask(t.Context(), cfg, nil, "reload")
		synctest.Wait()
		b.mu.Lock()
		if len(b.ran) != 0 {
			t.Error("reloaded before every apply had submitted")
		}
		b.mu.Unlock()
		b.submit(t.Context(), "q", nil) // the third one gave up.
		if err := errors.Join(<-one, <-two); err != nil {
			t.Error(err)
		}
		b.got(t, "0 reload")
	})
}

func TestReloads_LeastInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cfg := newReloadBed(), &ReloadConfig{MinInterval: 5 * time.Second}
		for range 3 {
			b.join("q")
			if err := <-b.ask(t.Context(), cfg, nil, "reload"); err != nil {
				t.Error(err)
			}
		}
		b.got(t, "0 reload, 5 reload, 10 reload")
	})
}

func TestReloads_RetriesThenRestoresAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cfg := newReloadBed(), &ReloadConfig{Retry: 2}
		restored := 0
		restore := func(error) error { restored++; return nil }
		b.run = func([]string) error {
			if restored == 0 {
				return errors.New("refused")
			}
			return nil
		}
		b.join("q")
		b.join("q")
		one := b.ask(t.Context(), cfg, restore, "reload")
		two := b.ask(t.Context(), &ReloadConfig{Retry: 2, OnFailure: onFailureKeep}, nil, "reload")
		e, ok := errors.AsType[*restoredError](<-one)
		if !ok || !e.clean || !strings.Contains(e.Error(), "refused") {
			t.Errorf("got %v", e)
		}
		if err := <-two; err != nil {
			t.Errorf("the other one keeps its files, and the last run read them: got %v", err)
		}
		if restored != 1 {
			t.Errorf("restored %d times", restored)
		}
		b.wg.Wait()
		if len(b.ran) != 4 {
			t.Errorf("got %v, want one run, two retries and one after the restoring", b.ran)
		}
	})
}

func TestReloads_LeftToTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReloadBed()
		b.join("q")
		if err := <-b.ask(t.Context(), &ReloadConfig{Leader: "e"}, nil, "reload"); !errors.Is(err, command.ErrNotLeading) {
			t.Errorf("got %v, want %v", err, command.ErrNotLeading)
		}
		b.got(t, "")
	})
}

// leading is a fleet in which this agent leads, until end.
type leading struct {
	Fleet

	term  int64
	end   string // ends the term: at "ledger", at "start", or while the command runs
	began func(context.Context, proc.Command) (proc.Result, error)
}

func (f *leading) at(moment string) {
	if f.end == moment {
		f.term = 0
	}
	if f.end == moment+" and again" {
		f.term++
	}
}

func (f *leading) Term(string) int64 { return f.term }

func (f *leading) BeginReload(_ context.Context, r command.LeaderReload) (bool, func(error), error) {
	f.at("ledger")
	if f.term == 0 || f.term != r.Term {
		return false, nil, command.ErrNotLeading
	}
	return false, func(error) {}, nil
}

func (f *leading) RunLeading(ctx context.Context, _ string, term int64, c proc.Command) (proc.Result, error) {
	f.at("start")
	if f.term == 0 || f.term != term {
		return proc.Result{}, command.ErrNotLeading
	}
	res, err := f.began(ctx, c)
	f.at("run")
	if f.term != term {
		err = errors.New("ended: lease ran out")
	}
	return res, err
}

// A leader-only reload whose term ends while it waits does not start, also not in the
// next term of this host with the token of the one before. The new files stay, without a
// condition: the reload is pending until a leader runs it.
func TestReloads_TermEndsWhileItWaits(t *testing.T) {
	for _, end := range []string{"ledger", "start", "run", "ledger and again", "start and again", "run and again"} {
		b, p := newPlayBed(t)
		f := &leading{term: 1, end: end, began: p.run}
		b.Fleet = f
		c := b.file("web", `{{ key "web/v" }}`)
		c.Reload = &ReloadConfig{Command: argv("reload"), Leader: "e", Retry: 3}
		b.keys(map[string]string{"v": "1"})
		x := b.bundle(c)
		b.good(x)
		b.is("web", "1")
		if open := b.Conds.List(); len(open) > 0 || !b.pending.has("web") {
			t.Errorf("%s: pending: %v, the conditions are %+v", end, b.pending.has("web"), open)
		}
		if ran := p.took(); len(ran) > 0 != strings.HasPrefix(end, "run") {
			t.Errorf("%s: ran %v", end, ran)
		}
		f.term, f.end = 7, ""
		b.good(x)
		if ran := p.took(); len(ran) != 1 || b.pending.has("web") {
			t.Errorf("%s: in the next term ran %v", end, ran)
		}
	}
}

func TestSwapLock_KeepsReloadAndSwapApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &swapLock{}
		free, err := l.acquire(t.Context(), "q", true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = l.command(ctx, "key\x00q"); err == nil {
			t.Error("a reload ran while files were unchecked")
		}
		other, err := l.command(t.Context(), "key\x00other")
		if err != nil {
			t.Fatal(err)
		}
		other()
		free()
		again, err := l.acquire(t.Context(), "q", true)
		if err != nil {
			t.Fatal(err)
		}
		again()
	})
}

// The reload of a bundle is pending, and the settings give the bundle another name: in this
// process, or before the next one.
func TestReload_PendingOfARenamedBundle(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newApplyBed(t)
		b.keys(map[string]string{"v": "1"})
		c := b.file("old", `{{ key "web/v" }}`)
		c.Reload = &ReloadConfig{Command: script("test -e %s && cat %s > %s", b.path("up"), b.path("old"), b.path("read")), OnFailure: onFailureKeep}
		b.bad(b.bundle(c), stageReload, "exit status 1")
		if err := os.WriteFile(b.path("up"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.Name = "new"
		if restart {
			b.Close()
			b.Engine = New(b.Options)
			b.Recover([]Config{c})
		} else {
			b.Retain([]Config{c})
		}
		b.good(b.bundle(c))
		if got := read(t, b.path("read")); got != "1" {
			t.Errorf("the next process %v: the program has read %q", restart, got)
		}
		if !b.PendingSince("old").IsZero() || !b.PendingSince("new").IsZero() {
			t.Error("a reload is pending")
		}
	}
}
