package apply

import (
	"context"
	"errors"
	"fmt"
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

func TestSwapLock_KeepsReloadAndSwapApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &swapLock{slots: map[string]chan struct{}{}}
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
