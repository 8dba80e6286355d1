package web

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/zkagent/zkagent/view"
)

// previewLimit bounds the previews of one page.
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
	TemplateStatus

	Age   []SourceStatus
	Diffs []FileDiff
	Fault string // why nothing can be rendered
}

// templatesPage shows the templates, failed ones first, and for those that
// are not well what would be written.
func (s *Server) templatesPage(r *http.Request, st *Status) any {
	ctx, cancel := context.WithTimeout(r.Context(), previewLimit)
	defer cancel()
	sources := map[string]SourceStatus{}
	for _, src := range st.Sources {
		sources[view.Source{Kind: view.Kind(src.Kind), Name: src.Name}.String()] = src
	}
	var bad, good []templateView
	for _, t := range st.Templates {
		v := templateView{TemplateStatus: t}
		for _, name := range t.Sources {
			v.Age = append(v.Age, sources[name])
		}
		if t.State == "ok" && !t.Owed {
			good = append(good, v)
			continue
		}
		var err error
		if v.Diffs, err = s.Source.Preview(ctx, t.Name); err != nil {
			v.Fault = err.Error()
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
