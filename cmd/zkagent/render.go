package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

type renderOptions struct {
	dryRun   bool
	diff     bool
	exitCode bool
	stdout   bool
	lastGood bool
	data     string
}

func newRenderCommand(g *globals) *cobra.Command {
	var o renderOptions
	var once, live bool
	c := &cobra.Command{
		Use: "render [NAME...]", Short: "Render templates once: write, print or compare",
		Long: `Render templates, all or those named, once: stage, check, write. Nothing is
reloaded. A server is asked only when a template uses ZooKeeper; the command
says what it waits for. With --exit-code the code is 1 when a file differs from
what was rendered, and 70 when it failed.`,
		RunE: func(c *cobra.Command, args []string) error {
			if o.lastGood && o.data != "" {
				return usagef("--last-good and --data exclude each other")
			}
			err := g.render(c.Context(), args, o)
			if err == nil || !o.exitCode {
				return err
			}
			if _, ok := errors.AsType[codeError](err); ok {
				return err
			}
			if e := classify(err); e.code == exitFailed {
				return fail(exitSoftware, err, e.hints...)
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "render and compare, and write nothing")
	f.BoolVar(&o.diff, "diff", false, "show the differences, and write nothing")
	f.BoolVar(&o.exitCode, "exit-code", false, "end with 1 when there is a difference, and with 70 for a failure")
	f.BoolVar(&o.stdout, "stdout", false, "print what was rendered, and write nothing")
	f.BoolVar(&o.lastGood, "last-good", false, "use the data that the agent has kept, instead of asking ZooKeeper")
	f.StringVar(&o.data, "data", "", "use the data of this YAML or JSON file, instead of asking ZooKeeper")
	f.BoolVar(&once, "once", true, "render once (always)")
	f.BoolVar(&live, "live", true, "ask ZooKeeper (the default)")
	_, _ = f.MarkHidden("once"), f.MarkHidden("live")
	return c
}

// render renders the bundles of the names, or all.
func (g *globals) render(ctx context.Context, args []string, o renderOptions) error {
	s, err := g.loadSettings(settings.Options{})
	if err != nil {
		return err
	}
	bundles, err := parseBundles(&s.Config, args)
	if err != nil {
		return err
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	v, err := g.renderView(ctx, &s.Config, bundles, o)
	if err != nil {
		return err
	}
	differs := false
	var errs []error
	for _, b := range bundles {
		changed, err := g.renderBundle(ctx, b, &v, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.cfg.Name, err))
		}
		differs = differs || changed
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if o.exitCode && differs {
		return codeError(exitFailed)
	}
	return nil
}

// bundle is a bundle with its parsed templates.
type bundle struct {
	cfg       agent.BundleConfig
	templates []*template.Template
}

// parseBundles parses the templates of the named bundles.
func parseBundles(c *agent.Config, args []string) ([]bundle, error) {
	for _, name := range args {
		if !slices.ContainsFunc(c.Bundles, func(b agent.BundleConfig) bool { return b.Name == name }) {
			return nil, fail(exitUsage, fmt.Errorf("there is no template or bundle %q", name), fmt.Sprintf("the settings have %v", bundleNames(c)))
		}
	}
	var list []bundle
	for _, cfg := range c.Bundles {
		if len(args) > 0 && !slices.Contains(args, cfg.Name) {
			continue
		}
		b := bundle{cfg: cfg}
		for _, t := range cfg.Templates {
			parsed, err := parseTemplate(c, t)
			if err != nil {
				return nil, err
			}
			b.templates = append(b.templates, parsed)
		}
		list = append(list, b)
	}
	return list, nil
}

func parseTemplate(c *agent.Config, t agent.TemplateConfig) (*template.Template, error) {
	text, dir := t.Contents, ""
	if t.Source != "" {
		data, err := os.ReadFile(t.Source)
		if err != nil {
			return nil, err
		}
		text, dir = string(data), filepath.Dir(t.Source)
	} else if len(c.Files) > 0 {
		dir = filepath.Dir(c.Files[0])
	}
	name := t.Name
	if t.Source != "" {
		name = t.Source
	}
	return template.Parse(template.Config{
		Name: name, Source: text, Dir: dir, Allow: t.Allow, ErrorOnMissingKey: !t.MissingKeyOK,
		MaxOutput: t.MaxSize, Timeout: t.Timeout, Syntax: t.Syntax, Syntaxes: c.Syntax,
	})
}

// renderView is the data to render with.
func (g *globals) renderView(ctx context.Context, c *agent.Config, bundles []bundle, o renderOptions) (view.View, error) {
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
		last, err := agent.LoadLastGood(c.StateDir)
		if err != nil {
			return v, err
		}
		if last == nil {
			return v, fail(exitFailed, errors.New("the agent has kept no data"), "it needs a state_dir, and to have rendered once")
		}
		for _, u := range last.Updates() {
			v = v.With(u)
		}
		return v, nil
	}
	list := followers(c, used(c, bundles))
	if len(list) == 0 {
		return v, nil
	}
	err := g.withSession(ctx, func(ctx context.Context, s *session.Session, _ *agent.Config) error {
		var err error
		v, err = g.gather(ctx, s, v, list)
		return err
	})
	return v, err
}

// used tells which sources the bundles use.
func used(c *agent.Config, bundles []bundle) func(view.Source) bool {
	var declared []view.Source
	for _, f := range followers(c, func(view.Source) bool { return true }) {
		declared = append(declared, f.source)
	}
	var sources []view.Source
	for _, b := range bundles {
		if b.cfg.ForEach != nil {
			sources = append(sources, *b.cfg.ForEach)
		}
		for _, t := range b.templates {
			sources = append(sources, t.Uses().Sources(declared)...)
		}
	}
	return func(s view.Source) bool { return slices.Contains(sources, s) }
}
