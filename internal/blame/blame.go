// Package blame says in words where each line of a rendered file comes from: the
// template's line, the values that stand in it or decided it, and who set each
// value and when.
//
// Guarantees: a report contains only the names of values, never a value. Besides
// the view, it reads each config tree once, for the shown keys only.
//
// Not here: the execution that finds the values (package template).
package blame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// MaxLines bounds one report.
const MaxLines = 20000

// maxKeys bounds the keys of one tree whose origin is looked up.
const maxKeys = 2000

// File is the report of one file.
type File struct {
	Path     string `json:"path"`
	Template string `json:"template"`
	// Lines are the requested lines.
	Lines []Line `json:"lines"`
	// Values are the values that the lines refer to by index.
	Values []Value `json:"values"`
	// Missing explains the absence of a text, if one was asked for.
	Missing *Missing `json:"missing,omitempty"`
	// Notes say what the report could not find out.
	Notes []string `json:"notes,omitempty"`
}

// Line is one line of the file.
type Line struct {
	Number int    `json:"line"`
	Text   string `json:"text"` // without the line break; empty when it is not UTF-8
	From   int    `json:"from"` // bytes of the file, with the line break
	To     int    `json:"to"`
	// TemplateLine is where in the template the line begins.
	TemplateLine int    `json:"template_line"`
	Parts        []Part `json:"parts"`
	// Values are the values whose text is in the line.
	Values []int `json:"values,omitempty"`
	// Because lists the conditions and loops that produced the line, outermost
	// first.
	Because []Reason `json:"because,omitempty"`
}

// Part is a range of bytes that one place of the template produced.
type Part struct {
	From    int   `json:"from"`
	To      int   `json:"to"`
	Line    int   `json:"template_line"`
	Literal bool  `json:"literal,omitempty"`
	Values  []int `json:"values,omitempty"`
}

// Reason is a condition or loop of the template.
type Reason struct {
	Line   int    `json:"template_line"`
	Text   string `json:"text"`
	Held   bool   `json:"held"`
	Values []int  `json:"values,omitempty"`
}

// Value is one value that the template read, and its source.
type Value struct {
	template.Value

	Text   string `json:"text"`             // as the settings refer to it
	Absent bool   `json:"absent,omitempty"` // the key does not exist
	// Of a key: the version that set it; or Before, if that version is no longer
	// kept; or the zxid of the write.
	Version int64  `json:"version,omitempty"`
	Before  int64  `json:"before,omitempty"`
	Author  string `json:"author,omitempty"`
	Host    string `json:"host,omitempty"`
	Message string `json:"message,omitempty"`
	Mzxid   int64  `json:"mzxid,omitempty"`
	// Time is when the version was published, the key set or the member registered.
	Time *time.Time `json:"time,omitempty"`
	// Of a member.
	Member *Member `json:"member,omitempty"`
	// Of an election.
	Leader string `json:"leader,omitempty"`
	Term   int64  `json:"term,omitempty"`
	// Count is the number of keys or members of a prefix or group.
	Count int `json:"count,omitempty"`
}

// Member says who registered a member.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Node    string `json:"node"`
	Status  string `json:"status"`
	Held    bool   `json:"held,omitempty"`
}

// Origins says which versions set keys of a tree; [config.Origins] does.
type Origins func(ctx context.Context, tree *view.Tree, keys []string) (map[string]config.Origin, error)

// New makes the report of one file. Without origins it looks up no versions.
func New(ctx context.Context, v view.View, b *apply.Blamed, q Query, origins Origins) *File {
	f := &File{Path: b.Destination, Template: b.Template, Lines: []Line{}, Values: []Value{}}
	r := &report{File: f, view: v, index: map[template.Value]int{}}
	lines := b.Lines(max(q.From, 1), q.To)
	if len(lines) > MaxLines {
		lines = lines[:MaxLines]
		f.Notes = append(f.Notes, "there are more lines: ask for a part of them (-L)")
	}
	for i := range lines {
		l := &lines[i]
		out := Line{Number: l.Number, From: l.From, To: l.To, Values: r.refs(l.Values())}
		if text := b.Data[l.From:l.To]; utf8.Valid(text) {
			out.Text = strings.TrimSuffix(string(text), "\n")
		}
		for n, p := range l.Parts {
			at := b.TemplateLine(p, l.From)
			if n == 0 {
				out.TemplateLine = at
			}
			out.Parts = append(out.Parts, Part{max(p.From, l.From), min(p.To, l.To), at, p.Literal, r.refs(p.Values)})
		}
		for _, w := range l.Why() {
			out.Because = append(out.Because, r.reason(w))
		}
		f.Lines = append(f.Lines, out)
	}
	if q.Missing != "" {
		f.Missing = r.missing(b, q.Missing)
	}
	r.describe(ctx, origins)
	return f
}

// report collects the values of a report.
type report struct {
	*File

	view  view.View
	index map[template.Value]int
}

func (r *report) refs(values []template.Value) []int {
	var list []int
	for _, v := range values {
		i, ok := r.index[v]
		if !ok {
			i = len(r.Values)
			r.index[v] = i
			r.Values = append(r.Values, Value{Value: v, Text: v.String()})
		}
		list = append(list, i)
	}
	return list
}

func (r *report) reason(w template.Reason) Reason {
	return Reason{w.Line, w.Text, w.Held, r.refs(w.Values)}
}

// describe fills in where the values come from.
func (r *report) describe(ctx context.Context, origins Origins) {
	keys := map[string][]int{} // of versioned trees, by config
	for i := range r.Values {
		v := &r.Values[i]
		switch v.Kind {
		case template.ValueKey:
			if r.key(v) {
				keys[v.Name] = append(keys[v.Name], i)
			}
		case template.ValueKeys:
			if t, ok := r.view.Tree(v.Name); ok {
				t.Walk(v.Path, func(string, view.Key) bool { v.Count++; return true })
				if t.Layout == config.LayoutVersioned {
					v.Version = t.Generation
				}
			}
		case template.ValueVersion:
			if t, ok := r.view.Tree(v.Name); ok {
				v.Version = t.Generation
			}
		case template.ValueMember:
			r.member(v)
		case template.ValueGroup:
			if g := findGroup(&r.view, v.Name); g != nil {
				v.Count = len(g.Members)
			}
		case template.ValueElection:
			if l, ok := r.view.Leader(v.Name); ok {
				v.Leader, v.Term = l.ID, l.Term
			}
		}
	}
	for name, list := range keys {
		r.versions(ctx, name, list, origins)
	}
	slices.Sort(r.Notes)
}

// key describes a key from the view, and reports whether versions know more.
func (r *report) key(v *Value) bool {
	t, ok := r.view.Tree(v.Name)
	if !ok {
		return false
	}
	k, found := t.Get(v.Path)
	v.Absent = !found
	v.Mzxid = k.Mzxid
	if k.Mtime > 0 {
		v.Time = new(time.UnixMilli(k.Mtime).UTC())
	}
	return t.Layout == config.LayoutVersioned && t.Generation > 0
}

func (r *report) member(v *Value) {
	g := findGroup(&r.view, v.Name)
	if g == nil {
		return
	}
	i := slices.IndexFunc(g.Members, func(m view.Member) bool { return m.Znode == v.Path })
	if i < 0 {
		return
	}
	m := g.Members[i]
	v.Member = &Member{m.ID, m.Address(), m.Node, m.Status, m.Held}
	if !m.Created.IsZero() {
		v.Time = new(m.Created.UTC())
	}
}

func (r *report) versions(ctx context.Context, name string, list []int, origins Origins) {
	tree, _ := r.view.Tree(name)
	if origins == nil {
		r.Notes = append(r.Notes, "config "+name+": who set the keys of version "+tree.Version()+" is known to ZooKeeper, which was not asked")
		return
	}
	if len(list) > maxKeys {
		list = list[:maxKeys]
		r.Notes = append(r.Notes, "config "+name+": there are more keys than are looked up: ask for fewer lines (-L)")
	}
	keys := lists.Map(list, func(n int) string { return r.Values[n].Path })
	found, err := origins(ctx, tree, keys)
	if err != nil {
		r.Notes = append(r.Notes, "config "+name+": who set the keys is not known: "+err.Error())
		return
	}
	for i, n := range list {
		v, o := &r.Values[n], found[keys[i]]
		if v.Before = o.Before; o.Before > 0 || o.Version.Number == 0 { // older than what is kept, or never there
			continue
		}
		v.Version, v.Author, v.Host, v.Message, v.Time = o.Version.Number, o.Version.Author, o.Version.Host, o.Version.Message, new(o.Version.Time)
	}
}

// findGroup returns a group by its name, or "SET/GROUP" of a set.
func findGroup(v *view.View, name string) *view.Group {
	if g, ok := v.Group(name); ok {
		return g
	}
	set, child, _ := strings.Cut(name, "/")
	if gs, ok := v.Groups(set); ok {
		g, _ := gs.Group(child)
		return g
	}
	return nil
}

// ErrNoFile says that no template of the settings makes a file of that name.
var ErrNoFile = errors.New("no template of the settings makes it")

// Query asks for the reports of files.
type Query struct {
	Name     string // of a bundle or template, or as Path
	Path     string // of a file: absolute, because the agent has another working directory
	From, To int    // lines from 1; 0: all
	Missing  string
	// Version names another version of a config than the one in use, as N or
	// CONFIG=N. Empty: the version in use.
	Version string
}

// Values returns the query as URL parameters.
func (q Query) Values() url.Values {
	return url.Values{
		"name": {q.Name}, "path": {q.Path}, "from": {strconv.Itoa(q.From)}, "to": {strconv.Itoa(q.To)}, "missing": {q.Missing}, "version": {q.Version},
	}
}

// ParseQuery is the inverse of Values.
func ParseQuery(v url.Values) (Query, error) {
	q := Query{Name: v.Get("name"), Path: cmp.Or(v.Get("path"), v.Get("name")), Missing: v.Get("missing"), Version: v.Get("version")}
	for name, to := range map[string]*int{"from": &q.From, "to": &q.To} {
		var err error
		if *to, err = strconv.Atoi(cmp.Or(v.Get(name), "0")); err != nil || *to < 0 {
			return q, fmt.Errorf("%s is %q, not a number of a line", name, v.Get(name))
		}
	}
	return q, nil
}

// Answer makes the reports of all files that the query names. It uses the session
// only to read versions. If s is nil, why says why there is no session.
func Answer(ctx context.Context, bundles []*apply.Bundle, v view.View, s *session.Session, why error, q Query) ([]*File, error) {
	var origins Origins
	if s != nil {
		origins = func(ctx context.Context, t *view.Tree, keys []string) (map[string]config.Origin, error) {
			return config.Origins(ctx, s, t.Path, t.Generation, keys)
		}
	}
	var files []*File
	for _, b := range bundles {
		match := b.Match(q.Name, q.Path)
		if b.Err != nil {
			for i := range b.Config.Templates {
				if match("", &b.Config.Templates[i]) {
					return nil, b.Err
				}
			}
			continue
		}
		at, err := withVersion(ctx, b, v, s, why, q.Version)
		if err != nil {
			return nil, err
		}
		list, err := b.Blame(ctx, at, match, q.Missing)
		if err != nil {
			return nil, err
		}
		for i := range list {
			f := New(ctx, at, &list[i], q, origins)
			if q.Version == "" {
				f.compare(&list[i])
			}
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: %w", q.Name, ErrNoFile)
	}
	return files, nil
}

// compare adds a note if the file in place differs from the report.
func (f *File) compare(b *apply.Blamed) {
	data, _, err := b.Config.Present(b.Destination)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Notes = append(f.Notes, "the file does not exist: the agent would write this")
	case err != nil:
		f.Notes = append(f.Notes, err.Error())
	case string(data) != string(b.Data):
		f.Notes = append(f.Notes, "the file in place differs from this: a change is pending, was refused, or somebody edited the file")
	}
}

// withVersion replaces a config in the view by the version that the query names.
func withVersion(ctx context.Context, b *apply.Bundle, v view.View, s *session.Session, why error, version string) (view.View, error) {
	if version == "" {
		return v, nil
	}
	name, number, named := strings.Cut(version, "=")
	if !named {
		number = version
		var configs []string
		for _, src := range b.Sources {
			if src.Kind == view.KindConfig {
				configs = append(configs, src.Name)
			}
		}
		if len(configs) != 1 {
			return v, fmt.Errorf("%s uses %d configs: name the one with version %s, as in --version NAME=%s", b.Config.Name, len(configs), version, version)
		}
		name = configs[0]
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(number, "v"), 10, 64)
	if err != nil || n <= 0 {
		return v, fmt.Errorf("version %q is not a number", number)
	}
	t, ok := v.Tree(name)
	if !ok {
		return v, fmt.Errorf("config %q is not among the data", name)
	}
	if s == nil {
		return v, fmt.Errorf("version %d of config %s cannot be read: %w", n, name, why)
	}
	next, err := config.ReadVersion(ctx, s, t.Path, n)
	if err != nil {
		return v, err
	}
	meta := *next
	meta.Name, meta.Last = name, t.Last
	return v.With(view.NewTree(meta, next.Keys())), nil
}
