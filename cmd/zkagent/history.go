package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/renderlog"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type fileHistory struct {
	bundle  *apply.Bundle
	path    string // of the file; empty: all of the bundle
	records []renderlog.Record
}

// readHistory reads the records of the bundle that makes a file. They are in the agent's
// state directory, with its access rights.
func readHistory(g *globals, name string) (*fileHistory, error) {
	s, err := g.loadSettings(settings.Options{Offline: true})
	if err != nil {
		return nil, err
	}
	if s.Config.StateDir == "" {
		return nil, fail(exitFailed, errors.New("nothing is kept without a state_dir"), "agent { state_dir = \"/var/lib/zkagent\" }")
	}
	path := absolute(name)
	engine := apply.New(apply.Options{StateDir: s.Config.StateDir})
	store := renderlog.New(s.Config.StateDir)
	for _, b := range s.Config.Parse() {
		made := b.Err == nil && b.Makes(name, path)
		if !made && b.Config.ForEach == nil {
			continue
		}
		records, err := store.List(b.Config.Name)
		if errors.Is(err, fs.ErrPermission) {
			return nil, fail(exitPermission, err, "only the agent's user can read the history")
		}
		if err != nil {
			return nil, err
		}
		k := &fileHistory{bundle: b, records: records}
		if slices.Contains(k.paths(), path) || b.Err == nil && engine.Writes(b, path) {
			k.path = path
		}
		if k.path != "" || made {
			return k, nil
		}
	}
	return nil, fail(exitUsage, fmt.Errorf("%s: %w", name, blame.ErrNoFile), "name a destination, a template or a bundle of the settings")
}

// absolute is a path that a user named, whether there is such a file or not.
func absolute(name string) string {
	path, err := filepath.Abs(name)
	if err != nil { // The working directory is gone.
		return filepath.Clean(name)
	}
	return path
}

func (k *fileHistory) paths() []string {
	var list []string
	for _, r := range k.records {
		for _, f := range r.Files {
			list = append(list, f.Path)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// written returns the file as the n-th latest record wrote it.
func (k *fileHistory) written(path string, n int) (renderlog.File, error) {
	have := 0
	for _, r := range k.records {
		for _, f := range r.Files {
			if f.Path != path {
				continue
			}
			if have++; have == n {
				return f, nil
			}
		}
	}
	return renderlog.File{}, fail(exitFailed, fmt.Errorf("%s@%d is not kept: there are %d", path, n, have), "\"zkagent history "+path+"\" lists the kept ones; history_size sets how many")
}

type historyRow struct {
	N       int       `json:"n,omitempty"` // as in FILE@N; 0: an apply that failed
	Path    string    `json:"path,omitempty"`
	Time    time.Time `json:"time"`
	Version string    `json:"version,omitempty"`
	Size    int       `json:"size"`
	Gone    bool      `json:"gone,omitempty"`
	Changes []string  `json:"changes,omitempty"`
	Error   string    `json:"error,omitempty"`
	Reload  string    `json:"reload,omitempty"`
}

func (k *fileHistory) rows() []historyRow {
	rows := []historyRow{}
	count := map[string]int{}
	for _, r := range k.records {
		row := historyRow{Time: r.Time, Version: r.Version, Changes: r.Changes, Error: r.Error, Reload: r.Reload}
		if r.Error != "" {
			rows = append(rows, row)
		}
		for _, f := range r.Files {
			if k.path == "" || f.Path == k.path {
				count[f.Path]++
				row.N, row.Path, row.Size, row.Gone = count[f.Path], f.Path, f.Size, f.Gone
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func newHistoryCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "history FILE|TEMPLATE", Short: "List the last contents of a file, and the cause of each change",
		Long: `List the last contents of a file: when the agent wrote each, the change in
ZooKeeper that caused it, and the result of the apply. FILE@1 is the latest content
that is kept, FILE@2 the one before: see "zkagent diff". The agent keeps them in its state
directory, up to history_size for each template.`,
		Example: "  zkagent history /etc/nginx/conf.d/upstreams.conf",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			k, err := readHistory(g, args[0])
			if err != nil {
				return err
			}
			return printRenders(&g.Console, k.rows())
		},
	}
}

func printRenders(console *term.Console, rows []historyRow) error {
	if len(rows) == 0 && !console.IsJSON() {
		console.Say("nothing is recorded: the agent records an apply when it has ended")
	}
	return term.PrintRows(console, "renders", rows, []string{"FILE", "WRITTEN", "VERSION", "BYTES", "BECAUSE OF", "RESULT"}, func(r historyRow) []string {
		name, size, result := "-", "-", "ok"
		if r.N > 0 {
			name, size = fmt.Sprintf("%s@%d", r.Path, r.N), strconv.Itoa(r.Size)
		}
		switch {
		case r.Error != "":
			result, _, _ = strings.Cut(r.Error, "\n")
		case r.Gone:
			result = "removed"
		case r.Reload != "":
			result = "reload " + r.Reload
		}
		return []string{name, r.Time.UTC().Format(time.RFC3339), cmp.Or(r.Version, "-"), size, cmp.Or(strings.Join(r.Changes, "; "), "-"), result}
	})
}

func newDiffCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "diff FILE[@N] [FILE[@N]]", Short: "Compare a file with one of its last contents",
		Long: `Compare the contents that the agent wrote to a file. FILE@1 is the latest
content that is kept, FILE@2 the one before. FILE alone, or no second argument,
is the file in place.`,
		Example: "  zkagent diff /etc/nginx/conf.d/upstreams.conf@2 /etc/nginx/conf.d/upstreams.conf",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			path, a, existed, err := contentOf(g, args[0])
			if err != nil {
				return err
			}
			other := path
			if len(args) == 1 && path == absolute(args[0]) {
				return usagef("%s is the file in place: compare it with %s@1, the latest content that is kept", args[0], args[0])
			}
			if len(args) > 1 {
				other = args[1]
			}
			path, b, _, err := contentOf(g, other)
			if err != nil {
				return err
			}
			text := term.Diff(path, a, existed, b)
			if g.IsJSON() {
				return g.PrintJSON("diff", map[string]any{"path": path, "changed": text != "", "unified": text})
			}
			return g.PrintDiff(text)
		},
	}
}

// contentOf returns what FILE or FILE@N names, and whether such a file exists.
func contentOf(g *globals, ref string) (string, []byte, bool, error) {
	name, number := ref, ""
	if i := strings.LastIndexByte(ref, '@'); i >= 0 {
		name, number = ref[:i], ref[i+1:]
	}
	n, err := strconv.Atoi(number)
	if err != nil || exists(ref) {
		path := absolute(ref)
		data, err := files.ReadNamed(path, files.MaxSize)
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil, false, nil
		}
		return path, data, true, err
	}
	if n < 1 {
		return "", nil, false, usagef("%s: the latest is %s@1", ref, name)
	}
	k, err := readHistory(g, name)
	if err != nil {
		return "", nil, false, err
	}
	path := k.path
	if paths := k.paths(); path == "" && len(paths) == 1 {
		path = paths[0]
	} else if path == "" {
		return "", nil, false, usagef("%s makes %s: name one of them", name, term.Count(len(paths), "file"))
	}
	f, err := k.written(path, n)
	if err == nil && f.Dropped {
		err = fail(exitFailed, fmt.Errorf("%s@%d had %d bytes: too many to keep", path, n, f.Size), "history_size sets how much is kept")
	}
	return path, f.Data, !f.Gone, err
}

type story struct {
	Path       string                `json:"path,omitempty"`
	Bundle     string                `json:"bundle"`
	Status     *show.TemplateStatus  `json:"status,omitempty"` // nil: no agent runs
	Conditions []condition.Condition `json:"conditions,omitempty"`
	Sources    []show.SourceStatus   `json:"sources,omitempty"`
	Renders    []historyRow          `json:"renders"`
}

func newExplainCommand(g *globals) *cobra.Command {
	var diffs int
	c := &cobra.Command{
		Use: "explain FILE|TEMPLATE [TEXT]", Short: "Explain a file: its state, the data that it waits for, its last renders",
		Long: `Explain a file: whether it is up to date, held back or not yet reloaded, and the
data that it waits for. Then come the last ten times that the agent wrote or refused
it: the change, and the results of the check and the reload. --diff N adds the last N
differences. "zkagent blame" shows where each line comes from.

With TEXT, explain why that text is not in the file. For the name or the address of
a host, the command shows whether it is registered, flapping, held or down, since
when and until when.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				return runBlame(c.Context(), g, args[0], blameOptions{missing: args[1]})
			}
			k, err := readHistory(g, args[0])
			if err != nil {
				return err
			}
			st := story{Path: k.path, Bundle: k.bundle.Config.Name, Renders: k.rows()}
			st.Renders = st.Renders[:min(len(st.Renders), 10)]
			status, err := g.status(c.Context())
			switch {
			case err == nil:
				st.take(status)
			case errors.Is(err, web.ErrNoAgent):
				g.Warnf("no agent is running: this is the recorded past")
			default:
				return err
			}
			if g.IsJSON() {
				return g.PrintJSON("story", st)
			}
			printStory(&g.Console, &st)
			printDiffs(&g.Console, k, diffs)
			return nil
		},
	}
	c.Flags().IntVar(&diffs, "diff", 0, "show the last N differences, too (default: none)")
	return c
}

// take copies the agent's status of the bundle and its sources.
func (s *story) take(status *show.Status) {
	for i := range status.Templates {
		if status.Templates[i].Name == s.Bundle {
			s.Status = &status.Templates[i]
		}
	}
	if s.Status == nil {
		return
	}
	subjects := []string{s.Bundle, s.Path}
	for _, src := range status.Sources {
		if name := src.Kind + "." + src.Name; slices.Contains(s.Status.Sources, name) {
			s.Sources = append(s.Sources, src)
			subjects = append(subjects, src.Name, name, src.Kind+" "+src.Name)
		}
	}
	for _, c := range status.Conditions {
		if slices.Contains(subjects, c.Subject) && c.Subject != "" {
			s.Conditions = append(s.Conditions, c)
		}
	}
}

func printStory(console *term.Console, s *story) {
	name := cmp.Or(s.Path, s.Bundle)
	if st := s.Status; st != nil {
		text := st.State
		if st.Version != "" {
			text += ", version " + st.Version
		}
		if !st.LastChange.IsZero() {
			text += ", written " + term.Age(st.LastChange) + " ago"
		}
		console.Printf("%s (template %s): %s\n", term.Printable(name), st.Name, text)
		if st.Error != "" {
			console.Printf("  %s\n", term.Printable(st.Error))
		}
		if st.PendingReload {
			console.Printf("  a reload is pending, for %s: %s\n", term.Age(st.PendingSince), st.PendingText)
		}
		if r := st.LastReload; r != nil {
			console.Printf("  last reload: exit %d after %s, %s ago\n", r.Code, term.Short(time.Duration(r.Took)), term.Age(r.At))
		}
		for _, c := range s.Conditions {
			console.Printf("  %s: %s (for %s)\n", term.Printable(c.Name()), term.Printable(c.Text), term.Age(c.Since))
		}
	} else {
		console.Printf("%s (template %s)\n", term.Printable(name), s.Bundle)
	}
	_ = printRenders(console, s.Renders)
}

func printDiffs(console *term.Console, k *fileHistory, n int) {
	paths := k.paths()
	if k.path != "" {
		paths = []string{k.path}
	}
	for _, path := range paths {
		for i := 1; i <= n; i++ {
			now, err := k.written(path, i)
			if err != nil {
				break
			}
			was, err := k.written(path, i+1)
			if err != nil || was.Dropped || now.Dropped {
				break
			}
			console.Printf("%s@%d -> %s@%d\n", path, i+1, path, i)
			_ = console.PrintDiff(term.Diff(path, was.Data, !was.Gone, now.Data))
		}
	}
}

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
			g.Printf("%s, made by %s\n", term.Printable(f.Path), term.Printable(f.Template))
			for i := range f.Lines {
				l := &f.Lines[i]
				g.Printf("%4d :%-4d %s\n", l.Number, l.TemplateLine, term.Printable(l.Text))
				for _, n := range l.Values {
					g.Printf("           = %s\n", term.Printable(f.Values[n].Words()))
				}
				for _, r := range l.Because {
					g.Printf("           ? %s\n", term.Printable(f.Reason(r)))
				}
			}
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
