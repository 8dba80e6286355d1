package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

type renderOptions struct {
	dryRun   bool
	check    bool
	diff     bool
	exitCode bool
	stdout   bool
	lastGood bool
	data     string
}

func newRenderCommand(g *globals) *cobra.Command {
	var o renderOptions
	c := &cobra.Command{
		Use: "render [FILE|TEMPLATE...]", Short: "Render templates once: write, print or compare",
		Long: `Render all templates once, or those named: stage, check, write. The path of a file
names the template or bundle that makes it. Nothing is reloaded. Templates that do
not use ZooKeeper need no server; otherwise the command names the data that it waits for.
With --exit-code the code is 1 when a file differs from the rendered text, and 70
when rendering failed. With --json each file is one line.`,
		RunE: func(c *cobra.Command, args []string) error {
			if o.lastGood && o.data != "" {
				return usagef("--last-good and --data exclude each other")
			}
			differs, err := renderFiles(c.Context(), g, args, o)
			return withExitCode(err, o.exitCode, differs)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "render and compare, and write nothing")
	f.BoolVar(&o.check, "check", false, "run the checks in a preview, as for a vote, and write nothing; by default they run before the swap")
	f.BoolVar(&o.diff, "diff", false, "show the differences, and write nothing")
	f.BoolVar(&o.exitCode, "exit-code", false, "exit with 1 when there is a difference, and with 70 for a failure; by default a difference exits with 0")
	f.BoolVar(&o.stdout, "stdout", false, "print the rendered files, and write nothing")
	f.BoolVar(&o.lastGood, "last-good", false, "use the data that the agent saved last, instead of asking ZooKeeper")
	f.StringVar(&o.data, "data", "", "use the data of this YAML or JSON file, instead of asking ZooKeeper")
	alreadySo(c, "once", "live")
	return c
}

// renderFiles renders the bundles of the names, or all. It reports whether a file differs from what was rendered.
func renderFiles(ctx context.Context, g *globals, args []string, o renderOptions) (bool, error) {
	s, err := g.loadSettings(settings.Options{})
	if err != nil {
		return false, err
	}
	engine := apply.New(apply.Options{AgentID: s.Config.ID, StateDir: s.Config.StateDir, Run: proc.Run})
	bundles, err := parseBundles(engine, &s.Config, args)
	if err != nil {
		return false, err
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	v, err := renderView(ctx, g, &s.Config, bundles, o)
	if err != nil {
		return false, err
	}
	rows, _ := memberRows(v, nil)
	warnLabels(&g.Console, rows)
	differs := false
	var errs []error
	for _, b := range bundles {
		if err := b.Config.LeftOut(&v); err != nil {
			g.Warnf("%s: %v", b.Config.Name, err)
		}
		changed, err := renderBundle(ctx, &g.Console, engine, b, v, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.Config.Name, err))
		}
		differs = differs || changed
	}
	return differs, errors.Join(errs...)
}

func parseBundles(e *apply.Engine, c *agent.Config, args []string) ([]*apply.Bundle, error) {
	var list []*apply.Bundle
	found := map[string]bool{}
	for _, b := range c.Parse() {
		wanted := len(args) == 0
		for _, name := range args {
			if name == b.Config.Name || b.Err == nil && (b.Makes(name, absolute(name)) || e.Writes(b, absolute(name))) {
				wanted, found[name] = true, true
			}
		}
		if !wanted {
			continue
		}
		if b.Err != nil {
			return nil, b.Err
		}
		list = append(list, b)
	}
	for _, name := range args {
		if !found[name] {
			return nil, fail(exitUsage, fmt.Errorf("%s: %w", name, blame.ErrNoFile), "the settings have "+listed(name, bundleNames(c)))
		}
	}
	return list, nil
}

// renderBundle reports whether a file differs, or differed, from the rendered text.
func renderBundle(ctx context.Context, console *term.Console, e *apply.Engine, b *apply.Bundle, v view.View, o renderOptions) (bool, error) {
	if o.check {
		if err := checkBundle(ctx, console, e, b, v); err != nil {
			return false, err
		}
	}
	if !o.diff && !o.stdout && !o.dryRun && !o.check {
		written, err := e.Once(ctx, b, v)
		for _, path := range written {
			console.Say("%s: written", path)
		}
		if len(written) == 0 && err == nil {
			console.Say("%s: nothing changed", b.Config.Name)
		}
		return len(written) > 0, err
	}
	list, _, err := e.Preview(ctx, b, v)
	if err != nil {
		return false, err
	}
	differs := false
	for _, f := range list {
		before, _, err := f.Config.Present(f.Destination)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return differs, err
		}
		existed := err == nil
		changed := !existed || !bytes.Equal(before, f.Data)
		differs = differs || changed
		switch {
		case console.IsJSON() && !o.stdout:
			text := ""
			if o.diff {
				text = term.Diff(f.Destination, before, existed, f.Data)
			}
			_ = console.Line(renderedFile{b.Config.Name, f.Destination, changed, existed, text})
		case o.stdout && !o.diff:
			if len(list) > 1 {
				console.Say("> %s", f.Destination)
			}
			console.Printf("%s", f.Data)
		case o.diff && changed:
			_ = console.PrintDiff(term.Diff(f.Destination, before, existed, f.Data))
		case !o.diff && changed:
			console.Printf("%s would change\n", f.Destination)
		}
	}
	if differs && !o.check && !o.stdout && b.Config.Check != nil {
		console.Say("%s: the check did not run; --check runs it", b.Config.Name)
	}
	return differs, nil
}

type renderedFile struct {
	Template string `json:"template"`
	Path     string `json:"path"`
	Changed  bool   `json:"changed"`
	Exists   bool   `json:"exists"`
	Unified  string `json:"unified,omitempty"` // the difference, with --diff
}

func checkBundle(ctx context.Context, console *term.Console, e *apply.Engine, b *apply.Bundle, v view.View) error {
	changes, err := e.Plan(ctx, b, v)
	switch {
	case errors.Is(err, apply.ErrCheckNotRun):
		return fail(exitFailed, err, "the check runs "+apply.CheckStatus(b.Config.Check))
	case err == nil && b.Config.Check != nil && len(changes) == 0:
		console.Say("%s: nothing would change, so the check did not run", b.Config.Name)
	case err == nil && b.Config.Check != nil:
		console.Say("%s: the check passes", b.Config.Name)
	}
	return err
}

func renderView(ctx context.Context, g *globals, c *agent.Config, bundles []*apply.Bundle, o renderOptions) (view.View, error) {
	v := view.View{Agent: view.Agent{ID: c.ID, Host: c.Host}}
	switch {
	case o.data != "":
		data, err := g.readInput(o.data)
		if err != nil {
			return v, err
		}
		fixture, err := template.LoadFixture(data)
		if fixture.Agent == (view.Agent{}) {
			fixture.Agent = v.Agent
		}
		return fixture, err
	case o.lastGood:
		last, err := lastgood.Load(c.StateDir)
		if err != nil {
			return v, err
		}
		if last == nil {
			return v, fail(exitFailed, errors.New("the agent has saved no data"), "with a state_dir it saves data at its first render")
		}
		last.Agent = v.Agent
		return last.View, nil
	}
	list := followers(c, used(bundles))
	if len(list) == 0 {
		return v, nil
	}
	err := g.withSession(ctx, func(ctx context.Context, s *session.Session, _ *agent.Config) error {
		var err error
		v, err = gatherSources(ctx, g, s, v, list)
		return err
	})
	return v, err
}

func used(bundles []*apply.Bundle) func(view.Source) bool {
	return func(s view.Source) bool {
		return slices.ContainsFunc(bundles, func(b *apply.Bundle) bool { return slices.Contains(b.Sources, s) })
	}
}

// follower runs one source within a session, as the agent does.
type follower struct {
	source view.Source
	path   string // the znode that tells whether it may be read
	run    func(context.Context, *session.Session, func(view.Update)) error
}

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

// gatherSources waits until every source has reported once.
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
	return strings.Join(lists.Map(list, view.Source.String), ", ")
}

func sourcesOf(list []follower) []view.Source {
	return lists.Map(list, func(f follower) view.Source { return f.source })
}
