package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type blameOptions struct {
	renderOptions

	lines   string
	missing string
	version string
}

func newBlameCommand(g *globals) *cobra.Command {
	var o blameOptions
	c := &cobra.Command{
		Use: "blame FILE|TEMPLATE", Short: "Show for each line of a file where it comes from, and who set it",
		Long: `Show where each line of a file comes from: the line of the template, the values
in it, and the conditions and loops around it. A key is shown with the version
that set it, its author, time and message; a member with the host that registered
it, and when. Name the file by its path, or by its template or bundle.

The command asks the agent of this host for the data in use. Without an agent it
asks ZooKeeper; --data and --last-good take other data. --missing TEXT says why a
text is not in the file. --version N shows a version that is not in use.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return runBlame(c.Context(), g, args[0], o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.lines, "lines", "L", "", "show only these lines, as FROM,TO (default: all)")
	f.StringVar(&o.missing, "missing", "", "explain why this text is not in the file, instead of where the lines come from")
	f.StringVar(&o.version, "version", "", "use this version of the config, as N or CONFIG=N (default: the one in use)")
	f.StringVar(&o.data, "data", "", "use the data of this YAML or JSON file, instead of asking the agent")
	f.BoolVar(&o.lastGood, "last-good", false, "use the data that the agent saved last, for example while ZooKeeper cannot be reached")
	return c
}

func runBlame(ctx context.Context, g *globals, name string, o blameOptions) error {
	q, err := o.query(name)
	if err != nil {
		return err
	}
	files, err := blameFiles(ctx, g, q, o)
	if errors.Is(err, blame.ErrNoFile) {
		return fail(exitUsage, err, "name a destination, a template or a bundle of the settings")
	}
	if err != nil {
		return err
	}
	if g.IsJSON() {
		return term.PrintList(&g.Console, "files", files)
	}
	for i, f := range files {
		if i > 0 {
			g.Printf("\n")
		}
		if f.Missing != nil {
			printMissing(&g.Console, f)
		} else {
			printBlamed(&g.Console, f)
		}
		for _, note := range f.Notes {
			g.Say("%s: %s", f.Path, note)
		}
	}
	return nil
}

func (o *blameOptions) query(name string) (blame.Query, error) {
	q := blame.Query{Name: name, Path: absolute(name), Missing: o.missing, Version: o.version}
	if o.lastGood && o.data != "" {
		return q, usagef("--last-good and --data exclude each other")
	}
	if o.lines == "" {
		return q, nil
	}
	from, to, ok := strings.Cut(o.lines, ",")
	var err, err2 error
	q.From, err = strconv.Atoi(strings.TrimSpace(from))
	q.To = q.From
	if ok {
		q.To, err2 = strconv.Atoi(strings.TrimSpace(to))
	}
	if errors.Join(err, err2) != nil || q.From < 1 || q.To < q.From {
		return q, usagef("--lines %q is not FROM,TO with two numbers of lines", o.lines)
	}
	return q, nil
}

// blameFiles asks the agent, or executes the templates here.
func blameFiles(ctx context.Context, g *globals, q blame.Query, o blameOptions) ([]*blame.File, error) {
	if o.data == "" && !o.lastGood {
		var files []*blame.File
		err := g.withAgent(ctx, func(ctx context.Context, client *web.Client) error {
			err := client.Get(ctx, "/blame?"+q.Values().Encode(), &files)
			if err != nil && strings.HasSuffix(err.Error(), blame.ErrNoFile.Error()) {
				return fmt.Errorf("%s: %w", q.Name, blame.ErrNoFile)
			}
			return err
		})
		if !errors.Is(err, web.ErrNoAgent) || g.addr != "" {
			return files, err
		}
		g.Say("no agent is running: asking ZooKeeper")
	}
	s, err := g.loadSettings(settings.Options{})
	if err != nil {
		return nil, err
	}
	all := s.Config.Parse()
	wanted := slices.DeleteFunc(slices.Clone(all), func(b *apply.Bundle) bool { return b.Err != nil || !b.Makes(q.Name, q.Path) })
	if len(wanted) == 0 { // Perhaps a file of a for_each: only the data says which files exist.
		wanted = slices.DeleteFunc(slices.Clone(all), func(b *apply.Bundle) bool { return b.Err != nil || b.Config.ForEach == nil })
	}
	list := followers(&s.Config, used(wanted))
	if o.data != "" || o.lastGood || len(list) == 0 {
		v, err := renderView(ctx, g, &s.Config, nil, o.renderOptions)
		if err != nil {
			return nil, err
		}
		return blame.Answer(ctx, withErrors(all, wanted), v, nil, errors.New("ZooKeeper is not asked for these data"), q)
	}
	var files []*blame.File
	err = g.withSession(ctx, func(ctx context.Context, zk *session.Session, _ *agent.Config) error {
		v, err := gatherSources(ctx, g, zk, view.View{Agent: view.Agent{ID: s.Config.ID, Host: s.Config.Host}}, list)
		if err == nil {
			files, err = blame.Answer(ctx, withErrors(all, wanted), v, zk, nil, q)
		}
		return err
	})
	return files, err
}

// withErrors returns the wanted bundles and those that cannot be parsed.
func withErrors(all, wanted []*apply.Bundle) []*apply.Bundle {
	return slices.DeleteFunc(slices.Clone(all), func(b *apply.Bundle) bool { return b.Err == nil && !slices.Contains(wanted, b) })
}

// printBlamed prints each line, and below it the values and the reasons.
func printBlamed(console *term.Console, f *blame.File) {
	console.Printf("%s, made by %s\n", term.Printable(f.Path), term.Printable(f.Template))
	for i := range f.Lines {
		l := &f.Lines[i]
		console.Printf("%4d :%-4d %s\n", l.Number, l.TemplateLine, term.Printable(l.Text))
		for _, n := range l.Values {
			console.Printf("           = %s\n", term.Printable(f.Values[n].Words()))
		}
		for _, r := range l.Because {
			console.Printf("           ? %s\n", term.Printable(f.Reason(r)))
		}
	}
}

func printMissing(console *term.Console, f *blame.File) {
	m := f.Missing
	name := fmt.Sprintf("%q", term.Printable(m.Text))
	if len(m.Lines) > 0 {
		console.Printf("%s is in %s: line %s\n", name, term.Printable(f.Path), numbers(m.Lines))
	} else {
		console.Printf("%s is not in %s\n", name, term.Printable(f.Path))
	}
	if len(m.TemplateLines) > 0 {
		console.Printf("  it is literal text of %s: line %s\n", term.Printable(f.Template), numbers(m.TemplateLines))
	}
	for _, v := range m.Found {
		console.Printf("  %s: %s\n", term.Printable(v.Value), term.Printable(v.Note))
	}
	for _, u := range m.Unmet {
		verb := "did not hold"
		if u.Held {
			verb = "held, and its else has it"
		}
		u.Held = true // the verb says whether it did
		console.Printf("  %s: %s\n", verb, term.Printable(f.Reason(u.Reason)))
		for _, n := range u.Of {
			console.Printf("    for %s\n", term.Printable(f.Values[n].Words()))
		}
	}
	if len(m.Searched) > 0 {
		console.Printf("  nothing that the template reads has it:\n")
		for _, n := range m.Searched {
			console.Printf("    %s\n", term.Printable(f.Values[n].Words()))
		}
	}
}

func numbers(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}
