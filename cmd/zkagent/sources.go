package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// follower runs one source within a session, as the agent does.
type follower struct {
	source view.Source
	path   string // the znode that tells whether it may be read
	run    func(context.Context, *session.Session, func(view.Update)) error
}

// followers are the followers of the sources that the settings declare.
func followers(c *agent.Config, wanted func(view.Source) bool) []follower {
	var list []follower
	add := func(kind view.Kind, name, path string, run func(context.Context, *session.Session, func(view.Update)) error) {
		if src := (view.Source{Kind: kind, Name: name}); wanted(src) {
			list = append(list, follower{src, path, run})
		}
	}
	for _, v := range c.Configs {
		v.Logger = c.Logger
		add(view.KindConfig, v.Name, trees.ReadyPath(v.Path), config.NewWatcher(v).Run)
	}
	for _, v := range c.Groups {
		v.Logger = c.Logger
		add(view.KindGroup, v.Name, v.Path, view.Untyped(registry.NewGroup(v).Run))
	}
	for _, v := range c.GroupSets {
		v.Logger = c.Logger
		add(view.KindGroups, v.Name, v.Path, view.Untyped(registry.NewGroups(v).Run))
	}
	for _, v := range c.Elections {
		add(view.KindElection, v.Name, v.Path, func(ctx context.Context, s *session.Session, up func(view.Update)) error {
			return election.Observe(ctx, s, v.Path, v.Dialect, func(l view.Leader) {
				l.Name, l.Path = v.Name, v.Path
				up(&l)
			})
		})
	}
	return list
}

func allSources(view.Source) bool { return true }

// readable returns an error when an ACL closes one of the sources. A follower would
// wait until the ACL changes, as an agent does.
func readable(ctx context.Context, s *session.Session, list []follower) error {
	for _, f := range list {
		_, _, err := s.Get(ctx, f.path)
		if errors.Is(err, session.ErrNoAuth) {
			return fmt.Errorf("%s: %w", f.source, err)
		}
	}
	return nil
}

// gatherSources waits until every source has reported once, and prints which ones are
// missing.
func gatherSources(ctx context.Context, g *globals, s *session.Session, v view.View, list []follower) (view.View, error) {
	sources := sourcesOf(list)
	last := v // read by the notice
	var mu sync.Mutex
	defer later(2*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		g.Say("waiting for %s", names(last.Missing(sources...)))
		for _, h := range missingHints(last.Missing(sources...)) {
			g.hint(h)
		}
	})()
	err := followSources(ctx, s, list, func(u view.Update) bool {
		mu.Lock()
		defer mu.Unlock()
		last = last.With(u)
		return !last.Has(sources...)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		left := last.Missing(sources...)
		return last, fail(exitUnavailable, fmt.Errorf("%w: no answer about %s", err, names(left)), missingHints(left)...)
	}
	return last, err
}

// followSources runs the followers and calls fn with each update, one at a time, until
// fn returns false, a follower fails, or the session or ctx ends.
func followSources(ctx context.Context, s *session.Session, list []follower, fn func(view.Update) bool) error {
	if err := readable(ctx, s, list); err != nil || len(list) == 0 {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	enough := errors.New("enough")
	var mu sync.Mutex // held while fn runs
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for _, f := range list {
		wg.Go(func() {
			err := f.run(ctx, s, func(u view.Update) {
				mu.Lock()
				defer mu.Unlock()
				if ctx.Err() == nil && !fn(u) {
					cancel(enough)
				}
			})
			if err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", f.source, err))
			}
		})
	}
	select {
	case <-s.Done():
		return context.Cause(s.Context())
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); !errors.Is(err, enough) {
		return err
	}
	return nil
}

// missingHints returns hints for the sources that have not reported.
func missingHints(list []view.Source) []string {
	var hints []string
	for _, s := range list {
		if s.Kind == view.KindConfig {
			hints = append(hints, fmt.Sprintf("config %s has not been published: \"zkagent config publish DIR %s\"", s.Name, s.Name))
		}
	}
	return append(hints, "\"zkagent doctor\" looks for what may not be read; --timeout allows more time")
}

func names(list []view.Source) string {
	return strings.Join(listOf(list, (*view.Source).String), ", ")
}

func sourcesOf(list []follower) []view.Source {
	return listOf(list, func(f *follower) view.Source { return f.source })
}
