package blame

import (
	"fmt"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Reason says which condition or loop stood at which line, and what it looked at.
func (f *File) Reason(r Reason) string {
	text := fmt.Sprintf(":%d %s", r.Line, r.Text)
	if !r.Held {
		text += " (not)"
	}
	var values []string
	for _, n := range r.Values {
		values = append(values, f.Values[n].Words())
	}
	if len(values) > 0 {
		text += ": " + strings.Join(values, "; ")
	}
	return text
}

// Words says where a value comes from.
func (v *Value) Words() string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if v.Absent {
		add("there is no such key")
	}
	switch {
	case v.Kind == template.ValueGroup:
		add("%s", term.Count(v.Count, "member"))
	case v.Kind == template.ValueKeys:
		add("%s", term.Count(v.Count, "key"))
		if v.Version > 0 {
			add("version %d", v.Version)
		}
	case v.Before > 0:
		add("before version %d, the oldest that is kept", v.Before)
	case v.Version > 0 && v.Kind == template.ValueKey && v.Absent:
		add("deleted by version %d", v.Version)
	case v.Version > 0:
		add("version %d", v.Version)
	case v.Mzxid > 0:
		add("zxid 0x%x", v.Mzxid)
	}
	if v.Author != "" {
		who := v.Author
		if v.Host != "" {
			who += " on " + v.Host
		}
		add("by %s", who)
	}
	if m := v.Member; m != nil {
		add("%s", m.Address)
		if m.Node != "" && !strings.HasPrefix(m.Address, m.Node+":") {
			add("of %s", m.Node)
		}
		if m.Status != view.StatusUp {
			add("%s", m.Status)
		}
		if m.Held {
			add("gone, held by the guard")
		}
	}
	if v.Kind == template.ValueElection {
		if v.Leader == "" {
			add("nobody leads")
		} else {
			add("%s leads, term %d", v.Leader, v.Term)
		}
	}
	if v.Time != nil {
		since := "on "
		if v.Member != nil {
			since = "since "
		}
		add("%s%s (%s ago)", since, v.Time.UTC().Format(time.RFC3339), time.Since(*v.Time).Round(time.Second))
	}
	if v.Message != "" {
		add("%q", v.Message)
	}
	text := v.Text
	if len(words) > 0 {
		text += ": " + strings.Join(words, ", ")
	}
	return text
}
