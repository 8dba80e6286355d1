package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/show"
)

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
