package web

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/show"
)

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

// maxBlamePage bounds the lines of a file that the page shows.
const maxBlamePage = 2000

// blamePage is the body of the page of one template: its files, each line with where
// it comes from.
type blamePage struct {
	Files []blameFile
	Fault string
}

type blameFile struct {
	*blame.File

	Rows []blameRow
}

type blameRow struct {
	blame.Line

	From    []string
	Because []string
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
		var p blamePage
		if err != nil {
			p.Fault = err.Error()
		}
		for _, f := range files {
			p.Files = append(p.Files, blameFile{f, rowsOf(f)})
		}
		return p
	})
}

// rowsOf are the lines of a file that everybody may read.
func rowsOf(f *blame.File) []blameRow {
	if !readableByAll(f.Path) {
		f.Notes = append(f.Notes, "the page shows only what everybody may read: `zkagent blame FILE` shows it")
		return nil
	}
	var rows []blameRow
	for _, l := range f.Lines {
		row := blameRow{Line: l}
		for _, n := range l.Values {
			row.From = append(row.From, f.Values[n].Words())
		}
		for _, r := range l.Because {
			row.Because = append(row.Because, f.Reason(r))
		}
		rows = append(rows, row)
	}
	return rows
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
