package web

import (
	"net/http"

	"github.com/zkagent/zkagent/internal/blame"
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
