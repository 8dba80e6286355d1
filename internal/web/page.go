package web

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// The page is rendered here, on request: it works without scripts, and what
// others have written (names of members, texts of checks) is escaped by
// html/template. The script only fetches the same page again when the agent
// says that something changed.

//go:embed page
var pageFiles embed.FS

// pageTemplates are parsed when somebody looks for the first time.
var pageTemplates = sync.OnceValues(func() (*template.Template, error) {
	return template.New("page").Funcs(pageFuncs).ParseFS(pageFiles, "page/*.html")
})

// sections are the pages in the order of the navigation.
var sections = []pageSection{
	{"/", "Fleet", "fleet"},
	{"/services", "Services", "services"},
	{"/templates", "Templates", "templates"},
	{"/configs", "Configs", "configs"},
	{"/rollouts", "Rollouts", "rollouts"},
	{"/locks", "Locks & leaders", "locks"},
	{"/timeline", "Events", "timeline"},
	{"/agent", "This agent", "agent"},
}

// localPages show only what this agent knows by itself.
var localPages = []string{"templates", "blame", "timeline", "agent"}

type pageSection struct{ Path, Title, name string }

type pageData struct {
	Title    string
	Path     string
	At       string // the state that is shown, as /live names it
	Sections []pageSection
	Status   show.Status
	Outage   bool // ZooKeeper does not answer, and the page has data of its
	Now      time.Time
	Body     any
}

func (s *Server) servePage(w http.ResponseWriter, p pageSection, body func(*show.Status) any) {
	t, err := pageTemplates()
	if err != nil {
		http.Error(w, "the page cannot be parsed", http.StatusInternalServerError)
		return
	}
	at := s.stateMark() // taken before the data, so that a later change gives a message
	st := s.public().status()
	data := pageData{Title: p.Title, Path: p.Path, At: at, Sections: sections, Status: st, Now: time.Now(), Body: body(&st)}
	data.Outage = st.ZooKeeper.Outage() && !slices.Contains(localPages, p.name)
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, p.name+".html", data); err != nil {
		s.Logger.Warn("page not rendered", "page", p.name, "err", err)
		http.Error(w, "the page cannot be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, term.Escape(b.String()))
}

type eventRow struct {
	event.Event

	Times int
	First time.Time // of the oldest in the row
}

// timelinePage lists the kept events, the latest first. An event that only repeats the
// one before it about the same subject shares its row.
func (s *Server) timelinePage(*http.Request, *show.Status) any {
	list, _ := s.public().events(0)
	rows := []*eventRow{}
	newer := map[string]*eventRow{}
	for _, e := range slices.Backward(list) {
		if row := newer[e.Subject]; row != nil && row.Kind == e.Kind && row.Text == e.Text && row.Warn == e.Warn {
			row.Times, row.First = row.Times+1, e.Time
			continue
		}
		row := &eventRow{Event: e, Times: 1, First: e.Time}
		newer[e.Subject] = row
		rows = append(rows, row)
	}
	return rows
}

type groupView struct {
	registry.GroupStatus

	Args string
}

func (s *Server) servicesPage(_ *http.Request, st *show.Status) any {
	groups := lists.Map(st.Groups, func(g registry.GroupStatus) groupView { return groupView{g, g.Name} })
	for _, set := range st.GroupSets {
		for _, g := range set.Groups {
			args := set.Name + " " + g.Name
			g.Name = set.Name + "/" + g.Name
			groups = append(groups, groupView{g, args})
		}
	}
	return groups
}

var pageFuncs = template.FuncMap{
	"since": term.Age,
	"clock": func(t time.Time) string {
		if time.Since(t) < 12*time.Hour {
			return t.UTC().Format("15:04 UTC")
		}
		return t.UTC().Format("2006-01-02 15:04 UTC")
	},
	"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"class": func(state any) string { return show.SeverityOf(fmt.Sprint(state)).Class() },
	"word":  func(state any) string { return cmp.Or(fmt.Sprint(state), "unknown") },
	"diffline": func(line string) string {
		switch {
		case strings.HasPrefix(line, "+"):
			return "add"
		case strings.HasPrefix(line, "-"):
			return "del"
		case strings.HasPrefix(line, "@@"):
			return "hunk"
		}
		return "same"
	},
	"plural":     term.Count,
	"shown":      shown,
	"short":      func(took view.Seconds) string { return term.Short(time.Duration(took)) },
	"phrases":    phrases,
	"hostpage":   func(id string) string { return "/hosts/" + url.PathEscape(id) },
	"configpage": func(name string) string { return "/configs/" + url.PathEscape(name) },
}

// phrase is a piece of a text; commands and settings are code.
type phrase struct {
	Text string
	Code bool
}

// phrases splits a text at its backquotes.
func phrases(text string) []phrase {
	var list []phrase
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			list = append(list, phrase{part, i%2 == 1})
		}
	}
	return list
}

const previewLimit = 5 * time.Second

// FileDiff is what an apply would change in one file now.
type FileDiff struct {
	Path string
	// Note says why there are no lines: private, too large, not text.
	Note  string
	Lines []string
}

type templateView struct {
	show.TemplateStatus

	preview

	Age   []show.SourceStatus
	Lines bool // there is a page of where its lines come from
}

type preview struct {
	Diffs []FileDiff
	Fault string // why nothing can be rendered
}

// templatesPage shows the templates, failed ones first, and for those that
// are not well what would be written.
func (s *Server) templatesPage(r *http.Request, st *show.Status) any {
	ctx, cancel := context.WithTimeout(r.Context(), previewLimit)
	defer cancel()
	sources := map[string]show.SourceStatus{}
	for _, src := range st.Sources {
		sources[view.Source{Kind: view.Kind(src.Kind), Name: src.Name}.String()] = src
	}
	var bad, good []templateView
	for _, t := range st.Templates {
		v := templateView{TemplateStatus: t, Lines: s.public().all}
		for _, name := range t.Sources {
			v.Age = append(v.Age, sources[name])
		}
		if t.State == "ok" && !t.PendingReload {
			good = append(good, v)
			continue
		}
		if state, _ := s.Source.State(); s.public().all {
			v.preview, _ = s.previews.get(t.Name, state, func() (preview, error) {
				diffs, err := s.Source.Preview(ctx, t.Name)
				if err != nil {
					return preview{diffs, err.Error()}, ctx.Err() // who went away says nothing of the template
				}
				return preview{Diffs: diffs}, ctx.Err()
			})
		}
		bad = append(bad, v)
	}
	return append(bad, good...)
}

const maxBlamePage = 2000

// blamePage is the body of the page of one template: its files, each line with where
// it comes from.
type blamePage struct {
	Files []*blame.File
	Fault string
}

// serveBlamePage shows where the lines of a template's files come from. It has the
// text of files: so show_output must be set, and everybody may read the file itself.
func (s *Server) serveBlamePage(w http.ResponseWriter, r *http.Request) {
	if !s.public().all {
		http.Error(w, "the text of files is on the host: `zkagent blame FILE`; show_output = true shows it here", http.StatusForbidden)
		return
	}
	s.servePage(w, pageSection{r.URL.EscapedPath(), "Template " + r.PathValue("name"), "blame"}, func(*show.Status) any {
		ctx, cancel := context.WithTimeout(r.Context(), previewLimit)
		defer cancel()
		files, err := s.Source.Blame(ctx, blame.Query{Name: r.PathValue("name"), To: maxBlamePage})
		p := blamePage{files, problem(err)}
		for _, f := range files {
			if !readableByAll(f.Path) {
				f.Lines, f.Notes = nil, append(f.Notes, "the page shows only files that everybody may read: `zkagent blame FILE` shows it")
			}
		}
		return p
	})
}

// readableByAll reports whether every user of the host may read a file.
func readableByAll(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o004 != 0 && !ClosedDir(path)
}

// ClosedDir reports whether a directory above the file keeps others out of it.
func ClosedDir(file string) bool {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// Every local user may open the page, and more when a proxy stands before it. What
// commands print, and their arguments, may have secrets: they are shown on the admin
// socket alone, unless the settings say `show_output = true`.

// elsewhere stands where a text is left out.
const elsewhere = "the text is on the host, in zkagent status, and here with show_output = true"

// reader shows a status to somebody: all of it, or what everybody may read.
type reader struct {
	s   *Server
	all bool
}

// public is for the HTTP listener.
func (s *Server) public() reader { return reader{s, s.settings().ShowOutput} }

func (r reader) status() show.Status {
	st := r.s.Source.Status()
	if r.all {
		return st
	}
	for i, c := range own(&st.Conditions) {
		st.Conditions[i] = withoutOutput(c)
	}
	for i := range own(&st.Services) {
		for j := range own(&st.Services[i].Checks) {
			st.Services[i].Checks[j].Output = ""
		}
	}
	for i, t := range own(&st.Templates) {
		if t.Error != "" && t.State != "kept" {
			st.Templates[i].Error = strings.TrimSpace(t.Stage+" failed") + "; " + elsewhere
		}
		if t.LastReload != nil && t.LastReload.Error != "" {
			last := *t.LastReload
			last.Error = exitText(last.Code)
			st.Templates[i].LastReload = &last
		}
	}
	for i := range own(&st.Hooks) {
		h := &st.Hooks[i]
		h.Command = ""
		for j, run := range own(&h.Runs) {
			h.Runs[j].Output = ""
			if run.Error != "" {
				h.Runs[j].Error = exitText(run.Code)
			}
		}
	}
	for i, e := range own(&st.Execs) {
		if e.Error != "" {
			st.Execs[i].Error = exitText(e.Code)
		}
	}
	return st
}

// own replaces a list by a copy, which may be changed.
func own[T any](list *[]T) []T {
	*list = slices.Clone(*list)
	return *list
}

func exitText(code int) string {
	if code == 0 {
		return "failed; " + elsewhere
	}
	return fmt.Sprintf("exit status %d; %s", code, elsewhere)
}

// withoutOutput is a condition without the words of a command.
func withoutOutput(c condition.Condition) condition.Condition {
	if c.Kind().Output {
		c.Text = exitText(c.Exit)
	}
	return c
}

// events are the kept events after seq as the reader may see them, and a channel
// that is closed at the next one.
func (r reader) events(seq int64) ([]event.Event, <-chan struct{}) {
	list, next := r.s.Events.Since(seq)
	if !r.all {
		for i, e := range list {
			code, _, _ := strings.Cut(e.Subject, " ")
			opened := strings.HasPrefix(e.Kind, "condition-") && condition.Condition{Code: code}.Kind().Output
			if opened || e.Kind == "apply-failed" || strings.HasPrefix(e.Kind, "hook-") {
				list[i].Text = ""
			}
		}
	}
	return list, next
}
