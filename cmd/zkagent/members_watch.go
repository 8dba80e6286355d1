package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// sortedNames are the keys of a map in order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// watchMembers prints the members now and at each change, until the session or
// the context ends.
func watchMembers(ctx context.Context, console *term.Console, s *session.Session, list []follower, o membersOptions) error {
	if err := readable(ctx, s, list); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	updates := make(chan view.Update)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for _, f := range list {
		wg.Go(func() {
			err := f.run(ctx, s, func(u view.Update) {
				select {
				case updates <- u:
				case <-ctx.Done():
				}
			})
			if err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", f.source, err))
			}
		})
	}
	var v view.View
	var sources []view.Source
	for _, f := range list {
		sources = append(sources, f.source)
	}
	for {
		select {
		case u := <-updates:
			v = v.With(u)
			if !v.Has(sources...) {
				continue
			}
			if err := printMembers(console, v, o); err != nil {
				return err
			}
			if !console.IsJSON() {
				_, _ = fmt.Fprintln(console.Out)
			}
		case <-s.Done():
			return context.Cause(s.Context())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
