package blame

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// maxFound bounds the values that hold a text.
const maxFound = 50

// Missing explains why a text is not in a file.
type Missing struct {
	Text string `json:"text"`
	// Lines are the lines of the file that contain the text after all.
	Lines []int `json:"lines,omitempty"`
	// TemplateLines are the lines of the template that contain the text literally.
	TemplateLines []int `json:"template_lines,omitempty"`
	// Unmet lists the conditions that left the text out.
	Unmet []Unmet `json:"unmet,omitempty"`
	// Found lists the values that contain the text, and what happened to them.
	Found []Found `json:"found,omitempty"`
	// Searched lists the values that the template reads, if none of them contains
	// the text.
	Searched []int `json:"searched,omitempty"`
}

// Unmet is a condition that left the text out.
type Unmet struct {
	Reason

	Of []int `json:"of,omitempty"` // the element that the loop stood at
}

// Found is a value that contains the text.
type Found struct {
	Value string `json:"value"`
	Note  string `json:"note,omitempty"`
}

func (r *report) missing(b *apply.Blamed, text string) *Missing {
	m := &Missing{Text: text, TemplateLines: b.Literals}
	for at := 0; len(m.Lines) < maxFound; {
		i := bytes.Index(b.Data[at:], []byte(text))
		if i < 0 {
			break
		}
		at += i + len(text)
		n := 1 + bytes.Count(b.Data[:at-len(text)], []byte("\n"))
		if !slices.Contains(m.Lines, n) {
			m.Lines = append(m.Lines, n)
		}
	}
	for _, u := range b.Unmet {
		m.Unmet = append(m.Unmet, Unmet{r.reason(u.Reason), r.refs(u.Of)})
	}
	for _, v := range b.Read {
		m.look(&r.view, v, text)
	}
	if len(m.Found) == 0 && len(m.TemplateLines) == 0 {
		m.Searched = r.refs(b.Read)
	}
	return m
}

func (m *Missing) add(value, note string) {
	f := Found{value, note}
	if len(m.Found) < maxFound && !slices.Contains(m.Found, f) {
		m.Found = append(m.Found, f)
	}
}

// look searches one value that the template reads.
func (m *Missing) look(v *view.View, read template.Value, text string) {
	switch read.Kind {
	case template.ValueKey, template.ValueKeys:
		t, ok := v.Tree(read.Name)
		if !ok {
			return
		}
		t.Walk(read.Path, func(path string, k view.Key) bool {
			switch name := (template.Value{Kind: template.ValueKey, Name: read.Name, Path: path}).String(); {
			case read.Kind == template.ValueKey && path != read.Path:
				return false
			case bytes.Contains(k.Value, []byte(text)):
				m.add(name, "its value has the text")
			case read.Kind == template.ValueKeys && strings.Contains(path, text):
				m.add(name, "its name has the text")
			}
			return len(m.Found) < maxFound
		})
	case template.ValueGroup:
		m.lookGroup(findGroup(v, read.Name), read.Name, text)
	case template.ValueGroups:
		if set, ok := v.Groups(read.Name); ok {
			for _, g := range set.Groups {
				m.lookGroup(g, read.Name+"/"+g.Name, text)
			}
		}
	}
}

// lookGroup searches the members of a group and its rejected children.
func (m *Missing) lookGroup(g *view.Group, name, text string) {
	if g == nil {
		return
	}
	for i := range g.Members {
		e := &g.Members[i]
		has := slices.ContainsFunc([]string{e.ID, e.Node, e.Name, e.Znode, e.Host, e.Address()}, func(s string) bool { return strings.Contains(s, text) })
		if !has {
			continue
		}
		note := "is a member, and up"
		switch out := slices.IndexFunc(g.Out, func(s view.Standing) bool { return s.ID == e.ID && s.Address == e.Address() }); {
		case out >= 0:
			note = g.Out[out].String()
		case !e.MayServe():
			note = "is " + e.Status + ": members gives those that are up"
		case len(e.RawLabels) > 0:
			note = "is up; it is left out where the template names a label of it that is not a token"
		}
		m.add(fmt.Sprintf("group.%s member %s (%s)", name, e.Znode, e.Address()), note)
	}
	for _, s := range g.Out {
		if s.State == view.StandingGone && slices.ContainsFunc([]string{s.ID, s.Node, s.Address}, func(have string) bool { return strings.Contains(have, text) }) {
			m.add(fmt.Sprintf("group.%s member %s (%s)", name, s.ID, s.Address), s.String())
		}
	}
	for _, e := range g.Rejected {
		if strings.Contains(e.Znode, text) || strings.Contains(e.Reason, text) {
			m.add(fmt.Sprintf("group.%s znode %s", name, e.Znode), "is not a member: "+e.Reason)
		}
	}
}

// Reason says which condition or loop stood at which line, and what it looked at.
func (f *File) Reason(r Reason) string {
	text := fmt.Sprintf(":%d %s", r.Line, r.Text)
	if !r.Held {
		text += " (not)"
	}
	values := lists.Map(r.Values, func(n int) string { return f.Values[n].Words() })
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
