package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// A real ensemble of three loses its leader while clients use every recipe at
// once. Each recipe is used in rounds, by clients with a session each, before,
// during and after; what must not happen is checked in every round. A round whose
// session or lease did not live through it proves nothing and is played again.
func TestEnsemble_LeaderKilled(t *testing.T) {
	e := zktest.StartEnsemble(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	m := &match{addrs: e.Addrs(), killed: make(chan struct{})}
	var all sync.WaitGroup
	for name, play := range games() {
		m.ready.Add(1)
		all.Go(func() { m.play(ctx, t, name, play) })
	}
	m.ready.Wait()
	e.Leader(t).Kill(t)
	close(m.killed)
	all.Wait()
}

// match is all games on one ensemble.
type match struct {
	addrs  []string
	ready  sync.WaitGroup // done by each game before the leader is killed
	killed chan struct{}
}

// gameClients is how many clients play one game.
const gameClients = 3

// game plays one round at a path of its own and returns what went wrong.
type game func(ctx context.Context, s []*session.Session, path string) error

// games are the recipes, each as a round of three clients.
func games() map[string]game {
	return map[string]game{
		"lock": exclusive(func(s *session.Session, path string, _ int) acquire {
			return single(recipe.NewLock(s, recipe.LockConfig{Path: path}).Acquire)
		}, 1),
		"kazoo lock": exclusive(func(s *session.Session, path string, _ int) acquire {
			return single(recipe.NewLock(s, recipe.LockConfig{Path: path, Dialect: recipe.Kazoo}).Acquire)
		}, 1),
		"semaphore": exclusive(func(s *session.Session, path string, _ int) acquire {
			return single(recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path, K: 2}).Acquire)
		}, 2),
		"multi-lock": exclusive(func(s *session.Session, path string, _ int) acquire {
			return single(recipe.NewMultiLock(
				recipe.NewLock(s, recipe.LockConfig{Path: path + "/b"}),
				recipe.NewLock(s, recipe.LockConfig{Path: path + "/a"})).Acquire)
		}, 1),
		"read-write lock": exclusive(readOrWrite, writeWeight),
		"revocable lock":  revocable,
		"barrier":         barrier,
		"double barrier":  doubleBarrier,
		"queue":           queue,
		"priority queue":  priorityQueue,
		"transaction":     transaction,
		"counter":         counter,
		"group":           group,
		"election":        elections,
	}
}

// play plays rounds until two were good before the kill, and then until two were
// good after it.
func (m *match) play(ctx context.Context, t *testing.T, name string, round game) {
	ready := sync.OnceFunc(m.ready.Done)
	defer ready()
	sessions, err := m.dial(ctx)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer func() { closeAll(sessions) }()
	before, after := 0, 0
	for n := 0; after < 2; n++ {
		killed := false
		select {
		case <-m.killed:
			killed = true
		default:
		}
		err := round(ctx, sessions, fmt.Sprintf("/%s/%d", strings.ReplaceAll(name, " ", "-"), n))
		switch {
		case err != nil && (ctx.Err() != nil || !tooLate(err)):
			t.Errorf("%s, round %d: %v", name, n, err)
			return
		case err != nil:
			t.Logf("%s, round %d does not count: %v", name, n, err)
			closeAll(sessions)
			if sessions, err = m.dial(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
		case killed:
			after++
		default:
			if before++; before == 2 {
				ready()
			}
		}
	}
}

// tooLate reports errors of clients whose session or lease has ended: on a slow
// machine an election takes longer than they last.
func tooLate(err error) bool {
	for _, e := range []error{session.ErrExpired, session.ErrClosed, session.ErrSuspended, session.ErrUnknown, recipe.ErrNotHeld} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (m *match) dial(ctx context.Context) ([]*session.Session, error) {
	var all []*session.Session
	for range gameClients {
		s, err := session.Dial(ctx, session.Config{Servers: m.addrs, Timeout: time.Minute})
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func closeAll(all []*session.Session) {
	for _, s := range all {
		_ = s.Close()
	}
}

// together runs fn for each client at once. The first error ends the others and
// is returned.
func together(ctx context.Context, s []*session.Session, fn func(ctx context.Context, s *session.Session, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for i, one := range s {
		wg.Go(func() {
			if err := fn(ctx, one, i); err != nil {
				once.Do(func() { first = err })
				cancel()
			}
		})
	}
	wg.Wait()
	return first
}
