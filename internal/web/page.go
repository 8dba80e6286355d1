package web

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/event"
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

// pageData is what every page gets; Body is of the section.
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

// pageRoutes serves the page, its style and its script.
func (s *Server) pageRoutes(mux *http.ServeMux) {
	bodies := map[string]func(*http.Request, *show.Status) any{
		"fleet": s.fleetPage, "services": s.servicesPage, "templates": s.templatesPage, "rollouts": s.rolloutsPage,
		"configs": s.configsPage, "locks": s.locksPage, "timeline": s.timelinePage, "agent": func(*http.Request, *show.Status) any { return nil },
	}
	for _, p := range sections {
		pattern := p.Path
		if pattern == "/" {
			pattern = "/{$}"
		}
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			s.servePage(w, p, func(st *show.Status) any { return bodies[p.name](r, st) })
		})
	}
	mux.HandleFunc("GET /hosts/{id}", s.serveHost)
	mux.HandleFunc("GET /templates/{name}", s.serveBlamePage)
	mux.HandleFunc("GET /configs/{name}", s.serveConfig)
	mux.HandleFunc("GET /live", s.serveLive)
	for name, kind := range map[string]string{"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, pageFiles, "page/"+name)
		})
	}
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

// eventRow is an event, and how often it came in a row.
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

// groupView is one group with the arguments that name it to commands.
type groupView struct {
	registry.GroupStatus

	Args string
}

// servicesPage is the groups that this agent follows, those of sets too.
func (s *Server) servicesPage(_ *http.Request, st *show.Status) any {
	var groups []groupView
	for _, g := range st.Groups {
		groups = append(groups, groupView{g, g.Name})
	}
	for _, set := range st.GroupSets {
		for _, g := range set.Groups {
			args := set.Name + " " + g.Name
			g.Name = set.Name + "/" + g.Name
			groups = append(groups, groupView{g, args})
		}
	}
	return groups
}

// pageFuncs are what the templates of the page may call.
var pageFuncs = template.FuncMap{
	"since": term.Age,
	"clock": func(t time.Time) string {
		if time.Since(t) < 12*time.Hour {
			return t.UTC().Format("15:04 UTC")
		}
		return t.UTC().Format("2006-01-02 15:04 UTC")
	},
	"stamp":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"class":      func(state any) string { return show.SeverityOf(fmt.Sprint(state)).Class() },
	"word":       func(state any) string { return cmp.Or(fmt.Sprint(state), "unknown") },
	"diffline":   diffClass,
	"plural":     term.Count,
	"shown":      shown,
	"short":      func(took view.Seconds) string { return term.Short(time.Duration(took)) },
	"phrases":    phrases,
	"hostpage":   hostPage,
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
