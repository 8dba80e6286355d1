package web

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/view"
)

const previewLimit = 5 * time.Second

// FileDiff is what an apply would change in one file now.
type FileDiff struct {
	Path string
	// Note says why there are no lines: private, too large, not text.
	Note  string
	Lines []string
}

// templateView is one template with what is pending or has failed.
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
		if s.public().all {
			v.preview = s.preview(ctx, t.Name)
		}
		bad = append(bad, v)
	}
	return append(bad, good...)
}

// diffClass is the colour of a line of a diff.
func diffClass(line string) string {
	switch {
	case strings.HasPrefix(line, "+"):
		return "add"
	case strings.HasPrefix(line, "-"):
		return "del"
	case strings.HasPrefix(line, "@@"):
		return "hunk"
	}
	return "same"
}

// preview returns the preview of a template in the present state.
func (s *Server) preview(ctx context.Context, name string) preview {
	state, _ := s.Source.State()
	p, _ := s.previews.get(name, state, func() (preview, error) {
		diffs, err := s.Source.Preview(ctx, name)
		if err != nil {
			return preview{diffs, err.Error()}, ctx.Err() // who went away says nothing of the template
		}
		return preview{Diffs: diffs}, ctx.Err()
	})
	return p
}

// serveBlame answers `zkagent blame`, on the admin socket alone: it has the text of
// files that not everybody may read.
func (s *Server) serveBlame(w http.ResponseWriter, r *http.Request) {
	q, err := blame.ParseQuery(r.URL.Query())
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	files, err := s.Source.Blame(r.Context(), q)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
		return
	}
	answer(w, files)
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
		p := blamePage{Files: files}
		if err != nil {
			p.Fault = err.Error()
		}
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
	want := fs.FileMode(0o004)
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil || info.Mode()&want == 0 {
			return false
		}
		if want = 0o001; at == filepath.Dir(at) {
			return true
		}
	}
}
